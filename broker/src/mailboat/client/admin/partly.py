"""Changes that several brokers make one after the other: what an error leaves done is told."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from mailboat.client.sending import is_unanswered
from mailboat.errors import MailboatError, PartlyDoneError

_MAX_NAMED: Final = 32


@contextmanager
def told_partly(verb: str, places: Sequence[str]) -> Iterator[list[str]]:
    """Give a list for the places where the change is made; an error says which those are.

    Args:
        verb: what happens to a place, such as `moved`.
        places: all of them, such as names of brokers.

    Raises:
        PartlyDoneError: an error came after some places, or one that leaves open whether the place
            was changed. An error that leaves all as it was comes out as it is.
    """
    done: list[str] = []
    try:
        yield done
    except MailboatError as error:
        is_open = is_unanswered(error)
        if not done and not is_open:
            raise
        rest = [place for place in places if place not in done]
        parts = [f"{verb} before: {_named(done)}"] if done else []
        if rest:
            parts.append(f"{'perhaps not' if is_open else 'not'} {verb}: {_named(rest)}")
        raise PartlyDoneError(error, "; ".join(parts)) from error


def _named(places: Sequence[str]) -> str:
    named = ", ".join(places[:_MAX_NAMED])
    more = len(places) - _MAX_NAMED
    return f"{named} and {more} more" if more > 0 else named
