"""How much memory there is: the smallest limit around the process, or all of the machine."""

import os
from pathlib import Path

import pytest

from mailboat.disk.memory_limit import memory_limit_bytes

_MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_MIB = 1 << 20


def _root(tmp_path: Path, groups: str, files: dict[str, str]) -> str:
    for path, text in {"proc/self/cgroup": groups, **files}.items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": f"{64 * _MIB}\n"}, 64 * _MIB),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, _MACHINE_BYTES),
        ("0::/\n", {"sys/fs/cgroup/memory.max": f"{1 << 60}\n"}, _MACHINE_BYTES),
        (
            "0::/pods/one\n",
            {
                "sys/fs/cgroup/pods/memory.max": f"{32 * _MIB}\n",
                "sys/fs/cgroup/pods/one/memory.max": "max\n",
            },
            32 * _MIB,
        ),
        (
            "0::/pods/one\n",
            {
                "sys/fs/cgroup/pods/memory.max": f"{32 * _MIB}\n",
                "sys/fs/cgroup/pods/one/memory.max": f"{16 * _MIB}\n",
            },
            16 * _MIB,
        ),
        (
            "5:cpu,cpuacct:/x\n4:memory:/docker/a\n",
            {"sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes": f"{8 * _MIB}\n"},
            8 * _MIB,
        ),
        # Inside a container of version 1 the mount begins at its own group.
        (
            "4:memory:/docker/a\n",
            {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * _MIB}\n"},
            8 * _MIB,
        ),
        ("4:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
         _MACHINE_BYTES),
        ("nonsense\n", {}, _MACHINE_BYTES),
    ],
)  # fmt: skip
def test_the_smallest_limit_counts(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    """Versions 1 and 2, in and outside of a container, with and without a limit."""
    assert memory_limit_bytes(_root(tmp_path, groups, files)) == expected


def test_without_control_groups_it_is_the_machine(tmp_path: Path) -> None:
    """Nothing to read is no limit."""
    assert memory_limit_bytes(str(tmp_path)) == _MACHINE_BYTES
