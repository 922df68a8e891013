"""The house keeps its own rules: import direction, sizes, names, words, links, locks (see house_rules.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import prefixcache
from tests import house_rules as rules

ROOT = Path(__file__).resolve().parents[1]
Rule = Callable[[Path], Iterator[str]]

# A tree that keeps every rule: each planted violation changes it in one place.
CLEAN = {
    "pyproject.toml": (
        '[project]\ndependencies = ["numpy>=1"]\n[project.optional-dependencies]\nengine = ["torch>=2,<3"]\n'
    ),
    "requirements.lock": "numpy==2.0\n",
    "requirements-dev.lock": "numpy==2.0\npytest==9.0\n",
    "requirements-engine.lock": "torch==2.13.0\n",
    "README.md": "# One\n\n[a page](docs/designs/radix.md#lookup) and [a heading](#one)\n",
    "docs/designs/radix.md": "# radix\n\n## Lookup\n",
    "docs/decisions/README.md": "[why](0001-why.md)\n",
    "docs/decisions/0001-why.md": "# Why\n",
    "src/prefixcache/py.typed": "",
    "src/prefixcache/__init__.py": 'from prefixcache.cache import Request\n\n__all__ = ["Request"]\n',
    "src/prefixcache/errors.py": "",
    "src/prefixcache/keys/__init__.py": "from prefixcache.errors import TokenError\n",
    "src/prefixcache/designs/radix.py": "from prefixcache.keys import chain\nfrom .base import Design\n",
    "src/prefixcache/designs/base.py": "import numpy\n",
    "src/prefixcache/cache/__init__.py": "from prefixcache.designs.radix import Radix\n",
    "src/prefixcache/replay/__init__.py": "def f():\n    from prefixcache.cache import Request\n",
    "src/prefixcache/engine/__init__.py": "import torch\n",
    "src/prefixcache/cli/__init__.py": "from prefixcache import Request\nimport prefixcache.replay\n",
    "tests/test_one.py": "import pytest\n\n\ndef test_one():\n    assert pytest\n",
}

VIOLATIONS: list[tuple[Rule, str, str]] = [
    (rules.import_direction, "src/prefixcache/keys/a.py", "from prefixcache.cache import Request\n"),
    (rules.import_direction, "src/prefixcache/keys/a.py", "from prefixcache import cache\n"),
    (rules.import_direction, "src/prefixcache/keys/a.py", "import prefixcache.designs.radix as r\n"),
    (rules.import_direction, "src/prefixcache/keys/a.py", "from ..designs.radix import Radix\n"),
    (rules.import_direction, "src/prefixcache/keys/a.py", "from .. import designs\n"),
    (
        rules.import_direction,
        "src/prefixcache/designs/a.py",
        "def f():\n    from prefixcache.cache import Request\n",
    ),
    (
        rules.import_direction,
        "src/prefixcache/designs/a.py",
        "if TYPE_CHECKING:\n    import prefixcache.cache\n",
    ),
    (rules.import_direction, "src/prefixcache/designs/a.py", 'import_module("prefixcache.cache")\n'),
    (rules.import_direction, "src/prefixcache/designs/a.py", "def f():\n    import torch.nn\n"),
    (rules.import_direction, "src/prefixcache/designs/a.py", "from transformers import AutoModel\n"),
    (rules.import_direction, "src/prefixcache/designs/a.py", "from prefixcache import Request\n"),
    (rules.import_direction, "src/prefixcache/replay/a.py", "from prefixcache.cli import main\n"),
    (rules.import_direction, "src/prefixcache/server.py", "from prefixcache.cache import Request\n"),
    (rules.import_direction, "src/prefixcache/pool.py", ""),
    (rules.sizes, "bench/long.py", "x = 1\n" * 450),
    (rules.sizes, "tests/test_long.py", "async def f():\n" + "    x = 1\n" * 71),
    (rules.sizes, "src/prefixcache/errors.py", "class A:\n    def f():\n" + "        x = 1\n" * 71),
    (rules.names, "src/prefixcache/keys/utils.py", ""),
    (rules.names, "tests/_helpers/a.py", ""),
    (rules.words, "src/prefixcache/errors.py", "# TOD" + "O: later\n"),
    (rules.words, "docs/a.md", "FIXM" + "E\n"),
    (rules.words, "docs/a.md", "Run it in /roo" + "t/project.\n"),
    (rules.words, "Makefile", "\tcd /wor" + "k/main\n"),
    (rules.words, "requirements.lock", "--index-url https://py" + "pi.org/simple\n"),
    (rules.root_folder, "notes.md", ""),
    (rules.root_folder, "scripts/run.py", ""),
    (rules.typed, "src/prefixcache/py.typed", "-"),
    (rules.front_door, "src/prefixcache/__init__.py", "from prefixcache.cache import Request\n"),
    (rules.front_door, "src/prefixcache/__init__.py", '__all__ = ["Request"]\n'),
    (rules.front_door, "src/prefixcache/__init__.py", "x = 1\n"),
    (rules.links, "README.md", "[gone](docs/gone.md)\n"),
    (rules.links, "README.md", "[gone](docs/designs/radix.md#grain)\n"),
    (rules.links, "docs/why.md", "[one folder too far](../../README.md)\n"),
    (rules.design_pages, "docs/designs/trie.md", "# trie\n\n## Grain\n"),
    (rules.decisions, "docs/decisions/0002-forgotten.md", "# Forgotten\n"),
    (rules.honest_tests, "tests/test_one.py", "import pytest\n\n@pytest.mark.skip\ndef test_a(): ...\n"),
    (
        rules.honest_tests,
        "tests/test_one.py",
        "import pytest\n\ndef test_a():\n    pytest.importorskip('torch')\n",
    ),
    (rules.honest_tests, "tests/test_one.py", "from time import sleep\n"),
    (rules.honest_tests, "tests/test_one.py", "from unittest.mock import patch\n"),
    (rules.locks, "requirements.lock", "numpy==2.0\nrich>=2\n"),
    (rules.locks, "requirements.lock", "--index-url somewhere\nnumpy==2.0\n"),
    (rules.locks, "requirements.lock", ""),
    (rules.locks, "requirements-dev.lock", "numpy==1.0\n"),
    (rules.locks, "requirements-engine.lock", "transformers==5.24.0\n"),
    (rules.locks, "requirements-engine.lock", "torch==2.13.0\nnumpy==2.0\n"),
]

# Other programs are written against these; a change here is a change for users and stands in CHANGELOG.md.
PUBLIC_NAMES = {
    "DESIGNS",
    "POLICIES",
    "PRESETS",
    "Books",
    "Cleared",
    "Copy",
    "CopyWorkers",
    "Event",
    "Explanation",
    "Full",
    "Hit",
    "InvariantError",
    "KVStore",
    "LockHolds",
    "Media",
    "Moved",
    "NoSpace",
    "OptionError",
    "Options",
    "OutlineNode",
    "Pin",
    "Planned",
    "Policy",
    "PrefixCache",
    "PrefixCacheError",
    "Preset",
    "Recurrent",
    "Removed",
    "Request",
    "RequestError",
    "RequestStats",
    "Scope",
    "ScopeError",
    "Stats",
    "Stored",
    "TokenError",
    "Transfer",
    "Waiting",
    "Window",
    "__version__",
    "defer_shared",
    "depth_first_weight",
    "longest_prefix_first",
    "slru",
    "tlru",
}


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_this_repository_keeps_the_rule(rule: Rule) -> None:
    found = list(rule(ROOT))
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_clean_tree_keeps_the_rule(rule: Rule, tmp_path: Path) -> None:
    assert list(rule(plant(tmp_path, CLEAN))) == []


@pytest.mark.parametrize(("rule", "path", "text"), VIOLATIONS, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_violation_is_found(rule: Rule, path: str, text: str, tmp_path: Path) -> None:
    plant(tmp_path, CLEAN | {path: text})
    if text == "-":
        (tmp_path / path).unlink()
    found = list(rule(tmp_path))
    assert len(found) == 1, found
    assert found[0].startswith((path, str(Path(path).parent), Path(path).parts[0]))


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _ in VIOLATIONS} == set(rules.RULES)


def test_what_git_ignores_is_not_judged(tmp_path: Path) -> None:
    tree = CLEAN | {
        ".gitignore": ".venv/\n*.egg-info/\n",
        ".venv/a/utils.py": "TOD" + "O",
        "x.egg-info/utils.py": "",
    }
    assert rules.files(plant(tmp_path, tree)) == sorted(map(Path, [*CLEAN, ".gitignore"]))


def test_the_public_names_are_these() -> None:
    assert set(prefixcache.__all__) == PUBLIC_NAMES
    assert all(hasattr(prefixcache, name) for name in PUBLIC_NAMES)
