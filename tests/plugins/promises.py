"""Checks that no second run forgives."""

from collections.abc import Iterator
from contextlib import contextmanager


class PromiseBroken(AssertionError):
    """A promise about data or time did not hold."""


@contextmanager
def promised(what: str) -> Iterator[None]:
    """Turn a failed assertion of the block into a broken promise that says `what` was promised."""
    try:
        yield
    except PromiseBroken:
        raise
    except AssertionError as error:
        raise PromiseBroken(f"{what}: {error}") from error
