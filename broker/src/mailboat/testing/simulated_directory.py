"""Directories of the simulated disk: names that live, names that are durable.

A name that was made, changed or removed since the last sync of its directory may be lost or kept
by a power cut, each change for itself; a rename is one change, also between two directories.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from mailboat.testing.simulated_file import SimulatedFile

Node: TypeAlias = "SimulatedFile | SimulatedDirectory"


@dataclass(slots=True, eq=False)
class NameChange:
    """One change of names: what goes, what comes."""

    removed: "tuple[SimulatedDirectory, str] | None" = None
    added: "tuple[SimulatedDirectory, str, Node] | None" = None

    def directories(self) -> "list[SimulatedDirectory]":
        """Return the one or two directories that it touches."""
        touched = [change[0] for change in (self.removed, self.added) if change is not None]
        return touched if len(touched) == 1 or touched[0] is not touched[1] else touched[:1]


@dataclass(slots=True, eq=False)
class SimulatedDirectory:
    """A directory: its live names, its durable names and the changes between the two, in order."""

    live: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def add(self, name: str, node: Node) -> None:
        """Give a node a name, live only."""
        self._change(NameChange(added=(self, name, node)))

    def remove(self, name: str) -> None:
        """Take a name away, live only."""
        self._change(NameChange(removed=(self, name)))

    def rename(self, name: str, target: "SimulatedDirectory", target_name: str) -> None:
        """Move a name, live only."""
        node = self.live[name]
        self._change(NameChange(removed=(self, name), added=(target, target_name, node)))

    def sync(self) -> None:
        """Make the names durable; a rename out of or into another directory goes whole."""
        while self.pending:
            change = self.pending[0]
            for directory in change.directories():
                if directory is not self:
                    # The other side must not run this change after a later one of ours.
                    _settle(directory, change)
            _apply(change, durable=True)
            self.pending.pop(0)

    @staticmethod
    def _change(change: NameChange) -> None:
        _apply(change, durable=False)
        for directory in change.directories():
            directory.pending.append(change)


def _settle(directory: SimulatedDirectory, until: NameChange) -> None:
    """Make a directory's changes before `until` durable and drop `until` from its list."""
    while (change := directory.pending.pop(0)) is not until:
        for other in change.directories():
            if other is not directory:
                other.pending.remove(change)
        _apply(change, durable=True)


def _apply(change: NameChange, *, durable: bool) -> None:
    if change.removed is not None:
        directory, name = change.removed
        (directory.durable if durable else directory.live).pop(name, None)
    if change.added is not None:
        directory, name, node = change.added
        (directory.durable if durable else directory.live)[name] = node


def tree_after_power_cut(root: SimulatedDirectory, random: Random) -> SimulatedDirectory:
    """Return a copy of a tree as a power cut may leave it; the tree itself stays as it is."""
    # A cut that keeps everything is what a strictly ordered file system leaves; one that loses
    # everything is what a disk with a large cache leaves.
    keeps = random.choice((True, False, None, None, None, None))
    kept: dict[NameChange, bool] = {}
    names: dict[SimulatedDirectory, dict[str, Node]] = {}
    for directory in _directories(root, set()):
        names[directory] = dict(directory.durable)
    for directory in list(names):
        for change in directory.pending:
            if change not in kept:
                kept[change] = random.random() < 0.5 if keeps is None else keeps
                if kept[change]:
                    _apply_to(names, change)
    copies: dict[SimulatedFile, SimulatedFile] = {}

    def survivor(file: SimulatedFile) -> SimulatedFile:
        if file not in copies:
            copies[file] = file.after_power_cut(random, keeps=keeps)
        return copies[file]

    return _copy(root, names, survivor)


def _apply_to(names: dict[SimulatedDirectory, dict[str, Node]], change: NameChange) -> None:
    if change.removed is not None:
        names[change.removed[0]].pop(change.removed[1], None)
    if change.added is not None:
        names[change.added[0]][change.added[1]] = change.added[2]


def _directories(
    directory: SimulatedDirectory, seen: set[SimulatedDirectory]
) -> list[SimulatedDirectory]:
    """Return every directory that live names, durable names or pending changes lead to."""
    found = [directory]
    seen.add(directory)
    nodes = [*directory.live.values(), *directory.durable.values()]
    nodes += [change.added[2] for change in directory.pending if change.added is not None]
    for node in nodes:
        if isinstance(node, SimulatedDirectory) and node not in seen:
            found += _directories(node, seen)
    return found


def _copy(
    directory: SimulatedDirectory,
    names: dict[SimulatedDirectory, dict[str, Node]],
    survivor: Callable[[SimulatedFile], SimulatedFile],
) -> SimulatedDirectory:
    result = SimulatedDirectory()
    for name, node in names[directory].items():
        if isinstance(node, SimulatedDirectory):
            result.durable[name] = _copy(node, names, survivor)
        else:
            result.durable[name] = survivor(node)
    result.live = dict(result.durable)
    return result
