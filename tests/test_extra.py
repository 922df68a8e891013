"""The extra `engine` is one: all else works without torch and transformers, and the engine says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src/prefixcache"
WITHOUT_EXTRA = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
NEEDS_EXTRA = {"engine", "server"}


def python(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_EXTRA + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_core_needs_no_extra() -> None:
    modules = [
        ".".join(("prefixcache", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in NEEDS_EXTRA and path.name != "__main__.py"
    ]
    run = python("import importlib; " + "; ".join(f"importlib.import_module({module!r})" for module in modules))
    assert run.returncode == 0, run.stderr


def test_the_engine_says_what_to_install() -> None:
    run = python("sys.argv = ['prefixcache', 'ttft']; from prefixcache.cli import main; main()")
    assert run.returncode == 2
    assert run.stderr == "error: torch is not installed: pip install 'prefixcache[engine]'\n"


def test_the_command_lists_it_all_the_same() -> None:
    run = python("sys.argv = ['prefixcache', 'ttft', '--help']; from prefixcache.cli import main; main()")
    assert run.returncode == 0
    assert "time to first token" in run.stdout
