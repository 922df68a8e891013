"""How much memory a device has left, so that a pool can be sized without asking the user."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_GIB = 2**30


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on a device now; of a container's limit, when that is less."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    limits = [limit for limit in (_machine(), _container()) if limit is not None]
    return min(limits)


def _machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: half of what is built in is a guess on the safe side
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _container() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
    except OSError:
        return None
    return None if limit == "max" else max(int(limit) - used, 0)


def gibibytes(size: int) -> str:
    """A size for people."""
    return f"{size / _GIB:.2f} GiB"
