"""Failures that no second run forgives.

A test that fails may have met a slow machine, and is run again. Where what was checked is a promise
about data or time, the first failure counts: a race may break it once in a thousand runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PromiseBroken(AssertionError):
    """A promise about data or time did not hold: no second run forgives that."""


@contextmanager
def promised(what: str) -> Iterator[None]:
    """Turn a failed assertion in the block into a broken promise; name what was promised."""
    try:
        yield
    except PromiseBroken:
        raise
    except AssertionError as error:
        raise PromiseBroken(f"{what}: {error}") from error
