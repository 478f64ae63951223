"""How much memory there is for this process and the page cache of its files.

In a container that is the limit of its control group, version 2 (`memory.max`) or 1
(`memory.limit_in_bytes`), and of every group around it, never more than the machine has.
"""

import os

_MACHINE = "/"


def memory_limit_bytes(root: str = _MACHINE) -> int:
    """Return the memory that this process may use, in bytes; `root` is where /proc and /sys lie."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine_bytes, *_group_limits(root.rstrip("/"))])


def share_of_memory(percent: int) -> int:
    """Return so many per cent of the memory that this process may use, in bytes."""
    return memory_limit_bytes() * percent // 100


def _group_limits(root: str) -> list[int]:
    """Return the limits of the groups that this process is in; those without one are left out."""
    limits: list[int] = []
    for line in _read(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            mount, name = f"{root}/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = f"{root}/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container the mount often begins at its own group, whatever the path says.
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for count in range(len(parts) + 1):
            text = _read("/".join([mount, *parts[:count], name])).strip()
            if text.isdigit():
                limits.append(int(text))
    return [limit for limit in limits if limit > 0]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
