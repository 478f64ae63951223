"""Which entries of a table have changed since the other replicas were told."""

from collections.abc import Callable


class Journal:
    """Keys of one table, in the order in which they changed."""

    __slots__ = ("_keys", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        """Begin without changes; `wake` is called with the first one of those that wait."""
        self._keys: dict[str, None] = {}
        self._wake = wake

    def __len__(self) -> int:
        """How much has changed."""
        return len(self._keys)

    def note(self, key: str) -> None:
        """Note that an entry was made, changed or removed."""
        if not self._keys:
            self._wake()
        self._keys[key] = None

    def take(self, most: int, weigh: Callable[[str], int]) -> list[str]:
        """Return some keys, the oldest first; they do not wait any more.

        What they weigh together is `most` or little more.
        """
        keys: list[str] = []
        weight = 0
        for key in self._keys:
            keys.append(key)
            weight += weigh(key)
            if weight >= most:
                break
        for key in keys:
            del self._keys[key]
        return keys

    def clear(self) -> None:
        """Forget what waits: nobody has to be told."""
        self._keys.clear()
