"""What became of the lines of an input that were sent in batches, several at a time.

Batches end in any order, so at an end before the end some lines behind the first that is not stored
may be stored. `summary` says which are, in the words of the input: line numbers from 1.
"""

from bisect import insort
from enum import Enum
from typing import Final

_MAX_NAMED: Final = 10


class Fate(Enum):
    """What became of lines that were given away to be sent; the values are words for people."""

    STORED = "stored"
    DOUBTFUL = "may or may not be stored"
    NOT_STORED = "not stored"


class SentLines:
    """The fates of stretches of lines; stretches side by side with the same fate are one.

    Each stretch is `(first line, last line)`. Lines that are no messages, such as empty ones,
    belong to the stretch they are read with.
    """

    __slots__ = ("_stored_to", "_stretches")

    def __init__(self) -> None:
        """Begin before line 1."""
        self._stored_to = 0
        self._stretches: dict[Fate, list[tuple[int, int]]] = {fate: [] for fate in Fate}

    @property
    def stored_to(self) -> int:
        """All lines up to this one are stored, for certain."""
        return self._stored_to

    def add(self, first_line: int, last_line: int, fate: Fate) -> None:
        """Note what became of a stretch of which nothing was noted yet."""
        if first_line > last_line:
            return
        stretches = self._stretches[fate]
        insort(stretches, (first_line, last_line))
        _join_neighbours(stretches, stretches.index((first_line, last_line)))
        if fate is Fate.STORED and stretches[0][0] == self._stored_to + 1:
            self._stored_to = stretches.pop(0)[1]

    @property
    def doubtful(self) -> list[tuple[int, int]]:
        """Stretches that may or may not be stored."""
        return list(self._stretches[Fate.DOUBTFUL])

    @property
    def stored_behind(self) -> list[tuple[int, int]]:
        """Stretches that are stored, behind the first line that is not."""
        return list(self._stretches[Fate.STORED])

    @property
    def is_exact(self) -> bool:
        """Whether no line behind `stored_to` is, or may be, stored."""
        return not self.doubtful and not self.stored_behind

    def summary(self) -> str:
        """Return which lines are stored, which is the first that is not, and what is behind it."""
        first = self._stored_to + 1
        stored = f"lines 1 to {self._stored_to} are stored" if self._stored_to else "none is stored"
        if self._stored_to == 1:
            stored = "line 1 is stored"
        is_doubtful = any(begin == first for begin, _ in self.doubtful)
        text = f"{stored}, line {first} is the first that "
        text += "may or may not be" if is_doubtful else "is not"
        if self.stored_behind:
            text += f"; {name_lines(self.stored_behind)} behind it are stored too"
        if self.doubtful and self.doubtful[0] != (first, first):
            text += f"; {name_lines(self.doubtful)} may or may not be stored"
        return text


def name_lines(stretches: list[tuple[int, int]]) -> str:
    """Return stretches in words: `line 7`, `lines 7 to 9`, `lines 7 to 9, 12, 20 to 30`."""
    named = [str(a) if a == b else f"{a} to {b}" for a, b in stretches[:_MAX_NAMED]]
    if len(stretches) > _MAX_NAMED:
        named.append(f"and {len(stretches) - _MAX_NAMED} more stretches")
    is_one = len(stretches) == 1 and stretches[0][0] == stretches[0][1]
    return f"{'line' if is_one else 'lines'} {', '.join(named)}"


def _join_neighbours(stretches: list[tuple[int, int]], index: int) -> None:
    """Join the stretch at `index` with those that end or begin right beside it."""
    begin, end = stretches[index]
    if index + 1 < len(stretches) and stretches[index + 1][0] == end + 1:
        end = stretches.pop(index + 1)[1]
    if index and stretches[index - 1][1] == begin - 1:
        begin = stretches[index - 1][0]
        del stretches[index]
        index -= 1
    stretches[index] = (begin, end)
