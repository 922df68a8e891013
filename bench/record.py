"""Raw results: what every program here keeps of a run, with the command and the machine that made it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LIBRARIES = ("prefixcache", "numpy", "xxhash", "torch", "transformers")
_LOAD = os.getloadavg()  # of others: read before the run adds its own


def keep(path: Path, figures: Mapping[str, Any], **versions: str) -> None:
    """Write the figures of this run to a file.

    Args:
        versions: of what else was measured.
    """
    libraries = {"python": platform.python_version()} | {
        name: version(name) for name in _LIBRARIES if name in sys.modules
    }
    document = {"command": _command(), "machine": _machine(), "versions": libraries | versions} | dict(figures)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _command() -> str:
    """How this program was started, without where it writes and without folders of this machine."""
    given = sys.orig_argv[1:]
    if "--write" in given:
        at = given.index("--write")
        del given[at : at + 2]
    return shlex.join(["python", *(_portable(argument) for argument in given)])


def _portable(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in _LOAD],
        "system": f"{platform.system()} {platform.machine()}",
    }
