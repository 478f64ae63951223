"""What the API server lets this operator see: a right that is missing here must not cost all.

A refusal (403, or 404) to list or watch one kind in one of the namespaces that are served takes
that namespace out: with half of what is there, a plan would be wrong. A refusal of the storage
classes only means that nothing is known of them. All else goes on. Without a right on a namespaced
kind in the whole cluster nothing can be served; that is no case for here.
"""

import logging
from typing import Final

from mailboat_operator.kinds import BY_NAME

logger = logging.getLogger(__name__)

REFUSED: Final = frozenset({403, 404})
"""How a call is answered for which a right is missing, or whose namespace is gone."""


class Sight:
    """The lists that are refused at present."""

    def __init__(self) -> None:
        """Everything is seen until something is refused."""
        self._refused: set[tuple[str, str | None]] = set()

    @staticmethod
    def is_bearable(kind: str, namespace: str | None) -> bool:
        """Whether others can be served without this list."""
        return namespace is not None or not BY_NAME[kind].is_namespaced

    def refused(self, kind: str, namespace: str | None, words: str) -> None:
        """A list or watch was refused; told once, and once a namespace as a warning."""
        if (kind, namespace) in self._refused:
            return
        is_first = namespace is None or self.sees_all_of(namespace)
        self._refused.add((kind, namespace))
        if namespace is None:
            message = f"{kind} cannot be read, so nothing is known of them"
        else:
            message = f"namespace {namespace} is not served while its {kind} cannot be read"
        logger.log(logging.WARNING if is_first else logging.INFO, "%s: %s", message, words)

    def granted(self, kind: str, namespace: str | None) -> bool:
        """A whole list was read; says whether it had been refused before."""
        if (kind, namespace) not in self._refused:
            return False
        self._refused.discard((kind, namespace))
        where = "" if namespace is None else f" in {namespace}"
        logger.info("%s can be read again%s", kind, where)
        return True

    def sees(self, kind: str, namespace: str | None) -> bool:
        """Whether this list is read."""
        return (kind, namespace) not in self._refused

    def sees_all_of(self, namespace: str) -> bool:
        """Whether everything in a namespace is read that a plan looks at."""
        return all(where != namespace for _, where in self._refused)

    def refusals(self) -> list[tuple[tuple[str, ...], float]]:
        """Kind and namespace of each refused list, as the metric shows them."""
        return [((kind, where or ""), 1.0) for kind, where in sorted(self._refused, key=str)]
