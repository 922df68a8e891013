"""vLLM's v1 block pool and KV cache manager, from its package and without a GPU.

The manager needs little of the package; the rest (kernels, models, the server) wants a GPU and dozens of
libraries, so its rooms are replaced by stand-ins, and so is every library that is missing. Statistics and events
are off, as in ours.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from bench.rivals.sglang import EmptyRooms, MissingLibraries
from bench.rivals.side import Tokens, unpack

VERSION = "0.33.0"
_LONGEST = 1 << 16  # tokens of a prompt

_EMPTY_ROOMS = tuple(
    f"vllm.{room}"
    for room in (
        "compilation",
        "config",
        "distributed",
        "envs",
        "forward_context",
        "logger",
        "model_executor",
        "multimodal",
        "platforms",
        "pooling_params",
        "sampling_params",
        "usage",
        "utils.async_utils",
        "utils.network_utils",
        "utils.system_utils",
        "utils.torch_utils",
        "v1.attention",
        "v1.engine",
        "v1.executor",
        "v1.hisparse",
        "v1.kv_hints",
        "v1.metrics",
        "v1.structured_output",
        "v1.worker",
    )
)


def load(folder: Path) -> str:
    """Make the manager importable; why it is not, or "" when it is."""
    fault = unpack("vllm", VERSION, folder, only=".py")
    if fault:
        return fault
    package = types.ModuleType("vllm")
    package.__path__ = [str(folder / "unpacked" / "vllm")]
    sys.modules["vllm"] = package
    sys.meta_path.insert(0, EmptyRooms(_EMPTY_ROOMS))
    sys.meta_path.append(MissingLibraries("vllm"))
    try:
        import vllm.v1.core.kv_cache_manager  # type: ignore[import-not-found]  # noqa: F401
    except Exception as error:
        return f"vLLM's manager does not import: {type(error).__name__}: {error}"
    return ""


class VLLM:
    """The manager of one full-attention group, with the default hash.

    Args:
        capacity: tokens.
    """

    def __init__(self, block_size: int, capacity: int, hash: str = "sha256") -> None:
        import torch  # type: ignore[import-not-found]
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_manager, kv_cache_utils
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        self.name = f"vllm v1 {hash} at {block_size}"
        self.block_size = block_size
        digest = get_hash_fn_by_name(hash)
        kv_cache_utils.init_none_hash(digest)
        self._hasher = kv_cache_utils.get_request_block_hasher(block_size, digest)
        self._request = Request
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        blocks = capacity // block_size + 1  # one stays empty for ever
        self._manager = kv_cache_manager.KVCacheManager(
            KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            max_model_len=_LONGEST,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
        )
        self._params = types.SimpleNamespace(
            max_tokens=1, prompt_logprobs=None, skip_reading_prefix_cache=None, extra_args=None, structured_outputs=None
        )
        self._number = 0

    def prompt(self, tokens: Tokens | list[int]) -> list[int]:
        return tokens if isinstance(tokens, list) else tokens.tolist()

    def request(self, prompt: list[int]) -> Any:
        """A request, its blocks hashed."""
        self._number += 1
        return self._request(str(self._number), prompt, self._params, None, block_hasher=self._hasher)

    def store(self, prompt: list[int]) -> None:
        self.serve(prompt)

    def find(self, prompt: list[int]) -> int:
        return int(self._manager.get_computed_blocks(self.request(prompt))[1])

    def hashes(self, prompt: list[int]) -> Any:
        """The chained hashes of a request's blocks."""
        return self.request(prompt).block_hashes

    def serve(self, prompt: list[int]) -> int:
        """vLLM's life of a request: hash, look up, allocate, free."""
        request = self.request(prompt)
        blocks, cached, _ = self._manager.get_computed_blocks(request)
        slots = self._manager.allocate_slots(request, len(prompt) - cached, cached, blocks)
        assert slots is not None, "no room for the prompt"
        request.num_computed_tokens = len(prompt)
        self._manager.free(request)
        return int(cached)
