"""Which entries of a table have changed since the other replicas were told."""

from collections.abc import Callable


class Journal:
    """Keys of one table, in the order in which they changed."""

    __slots__ = ("_keys", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        """Begin without changes; `wake` is called with the first one of those that wait."""
        self._keys: dict[str, None] = {}
        self._wake = wake

    def __bool__(self) -> bool:
        """Whether something has changed."""
        return bool(self._keys)

    def note(self, key: str) -> None:
        """Note that an entry was made, changed or removed."""
        if not self._keys:
            self._wake()
        self._keys[key] = None

    def take(self, most: int) -> list[str]:
        """Return some keys, the oldest first; they do not wait any more."""
        if len(self._keys) <= most:
            keys, self._keys = list(self._keys), {}
            return keys
        keys = [key for key, _ in zip(self._keys, range(most), strict=False)]
        for key in keys:
            del self._keys[key]
        return keys

    def clear(self) -> None:
        """Forget what waits: nobody has to be told."""
        self._keys.clear()
