"""The rules of the house: each is a function from a tree to what breaks it, `path[:line]: what and why`.

`test_house.py` runs them on this repository and, as their negative control, on planted violations.
Words that must stand in no file are spelled here with a bracket (`wor[d]`), or this file broke its own rule.
"""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

PACKAGE = Path("src/prefixcache")
MAX_FILE_LINES = 449
MAX_FUNCTION_LINES = 70

ROOT_FOLDER = {
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "bench",
    "docs",
    "examples",
    "native",
    "pyproject.toml",
    "requirements-dev.lock",
    "requirements-engine.lock",
    "requirements.lock",
    "src",
    "tests",
}

CORE = ("errors", "events", "keys", "blocks", "designs", "cache")
# What each room may import besides itself. A room that is not here does not exist.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "keys": ("errors",),
    "events": ("errors", "keys"),
    "blocks": ("errors", "keys", "events"),
    "designs": ("errors", "keys", "events", "blocks"),
    "cache": ("errors", "keys", "events", "blocks", "designs"),
    "scenario": ("__init__", *CORE),
    "replay": ("__init__", *CORE),
    "engine": ("__init__", *CORE),
    "server": ("errors", "keys", "engine"),
    "wire": ("errors", "keys", "events"),
    "cluster": ("errors", "keys", "events", "wire"),
    "__init__": CORE,
    "__main__": ("cli",),
    "article": ("__init__", *CORE, "scenario", "replay", "engine", "wire", "cluster"),
    "cli": ("__init__", *CORE, "scenario", "replay", "engine", "server", "wire", "cluster", "article"),
}
MODEL_LIBRARIES = {"torch", "transformers"}
MODEL_ROOMS = {"engine", "server"}

FORBIDDEN_WORDS = {
    r"\b(TOD[O]|FIXM[E])\b": "say it in an issue, not in the tree",
    r"(?<![\w.])/(roo[t]|hom[e]|User[s]|wor[k])/": "a path of one machine",
    r"py[p]i\.org|python[h]osted|registry\.np[m]js|crate[s]\.io|deb\.debia[n]": "a package registry's host",
}
NEVER_IN_TESTS = {
    "pytest.skip",
    "pytest.xfail",
    "pytest.importorskip",
    "pytest.mark.skip",
    "pytest.mark.skipif",
    "pytest.mark.xfail",
    "unittest.mock",
    "unittest.skip",
    "time.sleep",
}


def files(root: Path, pattern: str = "*") -> list[Path]:
    """The files of the tree that match, relative to it, without what .gitignore leaves out."""
    listed = (root / ".gitignore").read_text().split() if (root / ".gitignore").exists() else []
    ignored = [".git", *(line.rstrip("/") for line in listed)]

    def kept(name: str) -> bool:
        return not any(fnmatch(name, entry) for entry in ignored)

    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = filter(kept, folders)
        found += [Path(folder, name).relative_to(root) for name in names if fnmatch(name, pattern) and kept(name)]
    return sorted(found)


def _parsed(root: Path, under: Path = Path()) -> Iterator[tuple[Path, ast.Module]]:
    for path in files(root, "*.py"):
        if path.is_relative_to(under):
            yield path, ast.parse((root / path).read_text(encoding="utf-8"), str(path))


def _room(module: str) -> str:
    """The room of a dotted name inside the package; the package itself is the room `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def _imported(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of a module, those inside functions and under TYPE_CHECKING too."""
    package = ".".join(path.relative_to("src").parent.parts).split(".")
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                base = package[: len(package) - node.level + 1] if node.level else []
                source = ".".join([*base, node.module] if node.module else base)
                if source == PACKAGE.name:
                    yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
                else:
                    yield node.lineno, source
            case (
                ast.Call(func=ast.Name(id="import_module" | "__import__"))
                | ast.Call(func=ast.Attribute(attr="import_module"))
            ):
                if node.args and isinstance(node.args[0], ast.Constant):
                    yield node.lineno, str(node.args[0].value)


def import_direction(root: Path) -> Iterator[str]:
    """Rooms import only what lies below them, and only rooms that run a model import a model library."""
    rooms = {
        path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for path in files(root, "*.py")
        if path.is_relative_to(PACKAGE)
    }
    yield from (
        f"{PACKAGE}/{room}: no room of the house; MAY_IMPORT does not list it" for room in rooms - MAY_IMPORT.keys()
    )
    for path, tree in _parsed(root, PACKAGE):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for line, module in _imported(path, tree):
            top = module.split(".")[0]
            if top in MODEL_LIBRARIES and room not in MODEL_ROOMS:
                yield f"{path}:{line}: {room} imports {top}, which only {sorted(MODEL_ROOMS)} may"
            if top != PACKAGE.name:
                continue
            target = _room(module)
            if target not in rooms:
                target = "__init__"  # a public name taken from the front door
            if target != room and target not in MAY_IMPORT.get(room, ()):
                yield f"{path}:{line}: {room} imports {target}, which does not lie below it"


def sizes(root: Path) -> Iterator[str]:
    """No file and no function body is longer than a reader holds in mind."""
    for path, tree in _parsed(root):
        lines = len((root / path).read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            yield f"{path}: {lines} lines, {MAX_FILE_LINES} at most: does it hold one thing?"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.body[0].lineno + 1  # a command's options are no code to follow
                if length > MAX_FUNCTION_LINES:
                    yield f"{path}:{node.lineno}: {node.name}: {length} lines, {MAX_FUNCTION_LINES} at most"


def names(root: Path) -> Iterator[str]:
    """Files are named for what they hold."""
    for path in files(root):
        if any(Path(part).stem.strip("_") in {"util", "utils", "misc", "helpers"} for part in path.parts):
            yield f"{path}: name it for what it holds"


def words(root: Path) -> Iterator[str]:
    """No unfinished business, no path of one machine, no registry host, in any text file."""
    for path in files(root):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, why in FORBIDDEN_WORDS.items():
                if found := re.search(pattern, line):
                    yield f"{path}:{number}: {found[0]!r}: {why}"


def root_folder(root: Path) -> Iterator[str]:
    """The root folder holds what ARCHITECTURE.md shows there and nothing else."""
    for name in sorted({path.parts[0] for path in files(root)} - ROOT_FOLDER):
        yield f"{name}: the root folder has no place for it"


def typed(root: Path) -> Iterator[str]:
    """Users get our types."""
    if not (root / PACKAGE / "py.typed").is_file():
        yield f"{PACKAGE}/py.typed: missing, so type checkers ignore our annotations"


def front_door(root: Path) -> Iterator[str]:
    """`prefixcache/__init__.py` imports and lists the public names, says the version, and does nothing else."""
    path = PACKAGE / "__init__.py"
    bound: list[str] = []
    listed: list[str] = []
    for node in ast.parse((root / path).read_text(encoding="utf-8")).body:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.ImportFrom(module="__future__"):
                pass
            case ast.ImportFrom():
                bound += [alias.asname or alias.name for alias in node.names]
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                listed = ast.literal_eval(node.value)
            case ast.Assign(targets=[ast.Name(id="__version__")]):
                bound.append("__version__")
            case _:
                yield f"{path}:{node.lineno}: only imports, __version__ and __all__ stand here"
    if sorted(bound) != sorted(listed):
        yield f"{path}: imports and __all__ differ in {sorted(set(bound) ^ set(listed))}"


def links(root: Path) -> Iterator[str]:
    """Every relative link of every page leads to a file, and to a heading of it if it names one."""
    for path in files(root, "*.md"):
        for number, line in _prose(root / path):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, heading = target.partition("#")
                page = (root / path).parent / name if name else root / path
                if not page.exists():
                    yield f"{path}:{number}: {target} leads nowhere"
                elif heading and heading not in _anchors(page):
                    yield f"{path}:{number}: {target}: the page has no such heading"


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a Markdown page outside fenced code."""
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def _headings(page: Path) -> list[str]:
    return [line.lstrip("#").strip() for _, line in _prose(page) if re.match(r"#{1,6} ", line)]


def _anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _headings(page)}


def design_pages(root: Path) -> Iterator[str]:
    """The pages of the designs have the same headings in the same order, so that they read side by side."""
    pages = [path for path in files(root, "*.md") if path.parent == Path("docs/designs") and path.stem != "README"]
    for page in pages[1:]:
        if _headings(root / page)[1:] != _headings(root / pages[0])[1:]:
            yield f"{page}: other headings than {pages[0]}"


def decisions(root: Path) -> Iterator[str]:
    """Every decision is in the index of the decisions."""
    folder = Path("docs/decisions")
    index = root / folder / "README.md"
    listed = index.read_text(encoding="utf-8") if index.exists() else ""
    for path in files(root, "*.md"):
        if path.parent == folder and path.name != "README.md" and f"({path.name})" not in listed:
            yield f"{path}: not in {folder}/README.md"


def honest_tests(root: Path) -> Iterator[str]:
    """No test is skipped or expected to fail, none sleeps, none mocks what it tests."""
    for path, tree in _parsed(root, Path("tests")):
        for node in ast.walk(tree):
            used: list[str] = []
            match node:
                case ast.Attribute():
                    used = [ast.unparse(node)]
                case ast.Import():
                    used = [alias.name for alias in node.names]
                case ast.ImportFrom():
                    used = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in NEVER_IN_TESTS.intersection(used):
                yield f"{path}:{getattr(node, 'lineno', 0)}: {name} has no place in a test"


def locks(root: Path) -> Iterator[str]:
    """The lock files pin everything to one version, and they agree with each other and the project file."""
    pins: dict[str, dict[str, str]] = {}
    for name in ("requirements.lock", "requirements-dev.lock", "requirements-engine.lock"):
        pins[name] = {}
        for number, line in enumerate((root / name).read_text().splitlines(), 1):
            if line.startswith("#"):
                continue
            if not (pin := re.fullmatch(r"([\w.-]+)==([\w.]+)", line)):
                yield f"{name}:{number}: {line!r} is no pin (name==version)"
                continue
            pins[name][_distribution(pin[1])] = pin[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    dependencies = {_distribution(entry) for entry in project["project"]["dependencies"]}
    extra = {_distribution(entry) for entry in project["project"].get("optional-dependencies", {}).get("engine", [])}
    run, dev, engine = pins.values()
    yield from (
        f"requirements.lock: {missing} is not pinned; run make lock" for missing in sorted(dependencies - run.keys())
    )
    for name in sorted(run):
        if dev.get(name) != run[name]:
            yield f"requirements-dev.lock: {name} is not pinned as in requirements.lock; run make lock"
    yield from (
        f"requirements-engine.lock: {missing} is not pinned; run make lock" for missing in sorted(extra - engine.keys())
    )
    for name in sorted(engine.keys() & dev.keys()):
        yield f"requirements-engine.lock: {name} is in requirements-dev.lock already; run make lock"


def _distribution(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower()


RULES = (
    import_direction,
    sizes,
    names,
    words,
    root_folder,
    typed,
    front_door,
    links,
    design_pages,
    decisions,
    honest_tests,
    locks,
)
