import pytest

from mailboat.client.admin.partly import told_partly
from mailboat.errors import (
    BrokerError,
    ConnectError,
    MailboatError,
    PartlyDoneError,
    RequestTimeoutError,
)


def fail(error: Exception, places: list[str], done_before: int) -> None:
    """Do what is to be done at so many of the places, then fail."""
    with told_partly("moved", places) as done:
        done += places[:done_before]
        raise error


def failing(error: Exception, done_before: int) -> str:
    """Return what comes out where `error` comes after so many of three places."""
    with pytest.raises(MailboatError) as caught:
        fail(error, ["a/0", "a/1", "b/0"], done_before)
    return str(caught.value)


def test_refusal_before_anything_was_done_stays_as_it_is():
    """Nothing was changed, so there is nothing to add."""
    assert failing(BrokerError(13, "no"), 0) == "CODE: 13  DESC: no"
    assert failing(ConnectError("b:1: refused"), 0) == "b:1: refused"


def test_places_that_were_done_are_named():
    """And those that were not, or where nobody knows."""
    text = failing(BrokerError(13, "no"), 2)
    assert text == "CODE: 13  DESC: no; moved before: a/0, a/1; not moved: b/0"
    text = failing(RequestTimeoutError("b did not answer"), 2)
    assert text == "b did not answer; moved before: a/0, a/1; perhaps not moved: b/0"
    text = failing(RequestTimeoutError("a did not answer"), 0)
    assert text == "a did not answer; perhaps not moved: a/0, a/1, b/0"


def test_many_places_are_not_all_named():
    """A sentence stays a sentence."""
    with pytest.raises(PartlyDoneError, match="b31 and 7 more; not moved: b39"):
        fail(BrokerError(1, "no"), [f"b{number}" for number in range(40)], 39)
