"""SGLang's prefix trees, from its package and without a GPU.

    python bench/rivals/sglang.py [--folder DIR] [-- arguments of bench/radix.py]

makes a virtual environment with torch and the unpacked package in DIR (default `build/rivals/sglang`) and runs
bench/radix.py in it, so that the rows of both stand in one table. Where something cannot be installed it says so
in one line and exits with 0.

The trees need little of the package; the rest (kernels, models, the server) wants a GPU and dozens of libraries.
So its rooms are replaced by stand-ins, and so is every library that is missing.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import types
import zipfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VERSION = "0.5.23"
TORCH = "2.13.0"  # the tree core in the wheel is built for 2.11 to 2.14
NEEDED = (f"torch=={TORCH}", "numpy", "xxhash", "msgspec")
ROOT = Path(__file__).parents[2]

_EMPTY_ROOMS = tuple(
    f"sglang.{room}"
    for room in (
        "kernels",
        "jit_kernel",
        "srt.configs",
        "srt.constrained",
        "srt.disaggregation",
        "srt.distributed",
        "srt.entrypoints",
        "srt.layers",
        "srt.lora",
        "srt.managers",
        "srt.model_executor",
        "srt.model_loader",
        "srt.models",
        "srt.server_args",
        "srt.speculative",
    )
)


class _Base:
    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _StandIn:
    """Whatever a missing module is asked for: callable, a decorator, a base class, an empty container."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not keywords else _StandIn()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type("Base", (_Base,), {}),)

    def __getitem__(self, key: Any) -> Any:
        return _StandIn()

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())


class _Empty(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn()


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class EmptyRooms(importlib.abc.MetaPathFinder):
    """Asked first: stands in for these modules and all below them."""

    def __init__(self, rooms: Sequence[str]) -> None:
        self._rooms = rooms

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == room or name.startswith(room + ".") for room in self._rooms):
            return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
        return None


class MissingLibraries(importlib.abc.MetaPathFinder):
    """Asked last: stands in for what the package itself imports and nobody has. Others get their ImportError."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.split(".")[0]
        if top in (self._package, "torch", "numpy") or top in sys.stdlib_module_names:
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in str(frame.f_globals.get("__name__", "")):
            frame = frame.f_back
        if not str(frame.f_globals.get("__name__", "")).startswith(self._package):
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


def load(folder: Path) -> str:
    """Make `sglang` importable from an unpacked package; why it is not, or "" when it is."""
    if not (folder / "sglang" / "srt" / "mem_cache" / "radix_cache.py").is_file():
        return f"no SGLang package in {folder}"
    package = types.ModuleType("sglang")
    package.__path__ = [str(folder / "sglang")]
    package.__version__ = VERSION  # type: ignore[attr-defined]
    sys.modules["sglang"] = package
    sys.meta_path.insert(0, EmptyRooms(_EMPTY_ROOMS))
    sys.meta_path.append(MissingLibraries("sglang"))
    try:
        import sglang.srt.mem_cache.radix_cache  # type: ignore[import-not-found]  # noqa: F401
    except Exception as error:
        return f"SGLang's tree does not import: {type(error).__name__}: {error}"
    return ""


class Allocator:
    """Stands for the pool of slots: counts what comes back."""

    device = "cpu"

    def __init__(self) -> None:
        self.freed = 0

    def free_segment(self, indices: Any, start_pos: int = 0) -> None:
        self.freed += len(indices)

    def free(self, indices: Any) -> None:
        self.freed += len(indices)


class Tree:
    """One of SGLang's trees under the few calls that are timed.

    Args:
        kind: "python" (RadixCache) or "rust" (UnifiedRadixCache with the compiled core).
        page: tokens per page.
    """

    def __init__(self, kind: str, page: int, policy: str = "lru") -> None:
        import torch  # type: ignore[import-not-found]
        from sglang.srt.mem_cache import base_prefix_cache, cache_init_params, radix_cache

        self._params = base_prefix_cache
        self._key = radix_cache.RadixKey
        self._torch = torch
        keywords: dict[str, Any] = {
            "disable": False,
            "req_to_token_pool": None,
            "token_to_kv_pool_allocator": Allocator(),
            "page_size": page,
            "eviction_policy": policy,
        }
        if kind == "python":
            self.tree = radix_cache.RadixCache(cache_init_params.CacheInitParams(**keywords))
        else:
            from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
            from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

            keywords |= {"tree_components": (ComponentType.FULL,), "tree_core_backend": kind}
            self.tree = UnifiedRadixCache(cache_init_params.CacheInitParams(**keywords))

    def key(self, tokens: Sequence[int]) -> Any:
        return self._key(array("q", tokens))

    def match(self, key: Any) -> int:
        return int(self.tree.match_prefix(self._params.MatchPrefixParams(key=key)).device_prefix_len)

    def table(self, key: Any) -> int:
        """A match and the slots of it, as an attention kernel needs them."""
        found = self.tree.match_prefix(self._params.MatchPrefixParams(key=key))
        return len(self.tree.path_device_indices(found.last_device_node))

    def values(self, count: int) -> Any:
        return self._torch.arange(count)

    def insert(self, key: Any, values: Any) -> Any:
        return self.tree.insert(self._params.InsertParams(key=key, value=values))

    def evict(self, tokens: int) -> int:
        return int(self.tree.evict(self._params.EvictParams(num_tokens=tokens)).num_tokens_evicted)

    def hold(self, key: Any) -> tuple[int, Any]:
        """A match, and a lock on it."""
        found = self.tree.match_prefix(self._params.MatchPrefixParams(key=key))
        return int(found.device_prefix_len), self.tree.lock(found.last_device_node)

    def unlock(self, lock: Any) -> None:
        self.tree.unlock(lock)

    @property
    def size(self) -> int:
        return int(self.tree.evictable_size() + self.tree.protected_size())


def install(folder: Path) -> str:
    """Make the environment and unpack the package; why that failed, or "" when all is there."""
    python = folder / "venv" / "bin" / "python"
    package = folder / "package"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, capture_output=True)
    if not (package / "sglang").is_dir():
        command = ["-m", "pip", "install", "--quiet", *NEEDED]
        done = subprocess.run([python, *command], capture_output=True, text=True)
        if done.returncode:
            return f"{' '.join(NEEDED)} cannot be installed"
        command = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), f"sglang=={VERSION}"]
        done = subprocess.run([python, *command], capture_output=True, text=True)
        wheels = sorted(folder.glob(f"sglang-{VERSION}-*.whl"))
        if done.returncode or not wheels:
            return f"sglang {VERSION} cannot be downloaded"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(package)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "rivals" / "sglang")
    parser.add_argument("arguments", nargs="*", help="arguments of bench/radix.py, after --")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fault = install(folder)
    except (OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        print(f"bench/rivals/sglang.py: not run, {fault}")
        return
    command = [str(folder / "venv" / "bin" / "python"), str(ROOT / "bench" / "radix.py")]
    command += ["--sglang", str(folder / "package"), *arguments.arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    sys.exit(subprocess.run(command, env=environment).returncode)


if __name__ == "__main__":
    main()
