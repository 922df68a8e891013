"""Where the material lies that the tests read but the repository does not contain.

It is the folder `shared` beside the repository root. A clone alone has none: `files` is then empty,
so a test parametrised over it has no cases, and a test that asks for the fixture `shared_dir` is
not collected.
"""

from __future__ import annotations

from pathlib import Path

SHARED_DIR = Path(__file__).resolve().parents[2] / "shared"


def files(pattern: str) -> list[Path]:
    """Files of the shared folder that match the glob pattern, in order; none when it is absent."""
    return sorted(SHARED_DIR.glob(pattern)) if SHARED_DIR.is_dir() else []
