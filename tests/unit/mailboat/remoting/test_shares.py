"""Promises of mailboat.remoting.shares."""

from mailboat.remoting.shares import Shares


def test_an_address_has_a_quarter() -> None:
    """Four of them can take everything; what is given back is there for others."""
    shares = Shares(8)
    shares.take("a", 2)
    assert shares.excess("a", 1) == "2 for the address a"
    assert shares.excess("b", 2) is None
    for host in "bcd":
        shares.take(host, 2)
    assert shares.excess("e", 1) == "8 in all"
    shares.give("a", 1)
    assert shares.excess("e", 1) is None
    assert shares.taken == 7


def test_nothing_may_be_taken_and_given() -> None:
    """Also by an address that has nothing."""
    shares = Shares(8)
    shares.give("a", 0)
    shares.take("a", 0)
    assert (shares.taken, shares.excess("a", 2)) == (0, None)
