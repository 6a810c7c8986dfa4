"""SGLang's own prefix caches on a CPU, unmodified, driven by the calls that its scheduler makes.

`sglang-rust` is UnifiedRadixCache with the compiled Rust tree core: what SGLang runs by default. `sglang-python` is
the classic RadixCache. Both hold a slot per token in int64 tensors and take keys in `array("q")`.
"""

import importlib
import logging
import os
import sys
import warnings
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.stubs import make_sglang_importable
from benchmarks.workloads import Prompt, searched

WHEEL_VARIABLE = "RADIXKV_BENCH_SGLANG"
"""Names the directory of an unpacked sglang wheel; run.sh's own by default."""

warnings.filterwarnings("ignore")
logging.disable(logging.INFO)
torch: Any = importlib.import_module("torch")
torch.set_num_threads(1)
make_sglang_importable(Path(os.environ.get(WHEEL_VARIABLE, Path(sys.prefix) / "sglang")))
_cache: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
_radix: Any = importlib.import_module("sglang.srt.mem_cache.radix_cache")
_unified: Any = importlib.import_module("sglang.srt.mem_cache.unified_radix_cache")
_components: Any = importlib.import_module("sglang.srt.mem_cache.unified_cache.component_type")
_params: Any = importlib.import_module("sglang.srt.mem_cache.cache_init_params")

MatchPrefixParams, InsertParams, EvictParams = _cache.MatchPrefixParams, _cache.InsertParams, _cache.EvictParams
RadixKey = _radix.RadixKey


class Slots:
    """The pool of KV slots behind a cache: a stack in one tensor, where allocating and freeing are one copy each.

    SGLang's own allocators concatenate their whole free list on every free; this is the cheaper stand-in.
    """

    def __init__(self, page_size: int, pages: int) -> None:
        self.page_size = page_size
        self.device = torch.device("cpu")
        self.stack = torch.arange(pages * page_size, dtype=torch.int64)
        self.top = pages * page_size

    def alloc(self, slots: int) -> Any:
        """Take `slots` free slots, a whole number of pages."""
        self.top -= slots
        return self.stack[self.top : self.top + slots]

    def free(self, slots: Any) -> None:
        """Give slots back."""
        end = self.top + len(slots)
        self.stack[self.top : end] = slots
        self.top = end

    def free_segment(self, slots: Any, *, start_pos: int = 0) -> None:
        """Give back a part of a request's row; the caches call this one."""
        self.free(slots)

    def available_size(self) -> int:
        """How many slots are free."""
        return self.top


class Discard(Slots):
    """A pool for measuring the cache's calls alone: what is freed is forgotten."""

    def free(self, slots: Any) -> None:
        pass


class SGLang:
    """One of SGLang's prefix caches as a `Side`."""

    def __init__(self, name: str, block_size: int, capacity: int = 0, *, pool: bool = True) -> None:
        self.name = name
        self.block_size = block_size
        self.capacity = capacity * block_size
        self.pool = Slots(block_size, capacity) if pool and capacity else Discard(block_size, 0)
        options: dict[str, Any] = {
            "disable": False,
            "req_to_token_pool": None,
            "token_to_kv_pool_allocator": self.pool,
            "page_size": block_size,
        }
        self.tree_frees_duplicates = name == "sglang-rust"
        if self.tree_frees_duplicates:
            full = (_components.ComponentType.FULL,)
            self.cache = _unified.UnifiedRadixCache(
                _params.CacheInitParams(**options, tree_components=full, tree_core_backend="rust")
            )
            core = type(self.cache.tree_core).__name__
            if core != "RustUnifiedTreeCore":  # SGLang falls back to Python without a word
                raise RuntimeError(f"the Rust tree core did not load; SGLang chose {core}")
        else:
            self.cache = _radix.RadixCache(_params.CacheInitParams(**options))
        self.match: Callable[[Any], Any] = self._match
        self.insert: Callable[..., Any] = self._insert

    def _aligned(self, prompt: Prompt) -> Any:
        return RadixKey(array("q", prompt.tokens[: len(prompt.blocks) * self.block_size]))

    def _slots(self, blocks: "array[int]") -> Any:
        pages = torch.tensor(blocks.tolist(), dtype=torch.int64)
        return (pages[:, None] * self.block_size + torch.arange(self.block_size)).reshape(-1)

    def match_key(self, prompt: Prompt) -> Any:
        return RadixKey(array("q", prompt.tokens[: searched(len(prompt.tokens), self.block_size)]))

    def insert_args(self, prompt: Prompt) -> tuple[Any, Any, int]:
        return self._aligned(prompt), self._slots(prompt.blocks), prompt.known * self.block_size

    def insert_again_args(self, prompt: Prompt) -> tuple[Any, Any, int]:
        return self._aligned(prompt), self._slots(prompt.blocks), 0

    def _match(self, key: Any) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=key))

    def _insert(self, key: Any, value: Any, matched: int) -> Any:
        return self.cache.insert(InsertParams(key=key, value=value, prev_prefix_len=matched))

    def match_tokens(self, tokens: list[int]) -> Any:
        limit = searched(len(tokens), self.block_size)
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens), limit=limit)))

    def matched(self, result: Any) -> int:
        return int(result.device_prefix_len)

    def handle(self, result: Any) -> Any:
        return result.last_device_node

    def match_ids(self, key: Any) -> Any:
        return self.cache.path_device_indices(self._match(key).last_device_node)

    def lock_unlock(self, handle: Any) -> None:
        self.cache.unlock(self.cache.lock(handle))

    def evict(self, blocks: int) -> Any:
        return self.cache.evict(EvictParams(num_tokens=blocks * self.block_size))

    def cached_blocks(self) -> int:
        return int(self.cache.evictable_size() + self.cache.protected_size()) // self.block_size

    def serve_key(self, prompt: Prompt) -> tuple[Any, Any]:
        return self.match_key(prompt), self._aligned(prompt)

    def serve(self, key: tuple[Any, Any]) -> int:
        cache, pool = self.cache, self.pool
        match_key, insert_key = key
        result = cache.match_prefix(MatchPrefixParams(key=match_key))
        lock = cache.lock(result.last_device_node)
        matched: int = result.device_prefix_len
        need = len(insert_key) - matched
        short = need - pool.available_size()
        if short > 0:
            cache.evict(EvictParams(num_tokens=short))
        value = torch.cat((cache.path_device_indices(result.last_device_node), pool.alloc(need)))
        inserted = cache.insert(InsertParams(key=insert_key, value=value, prev_prefix_len=matched))
        if not self.tree_frees_duplicates and inserted.prefix_len > matched:
            pool.free(value[matched : inserted.prefix_len])
        cache.unlock(lock)
        return matched

    def serve_tokens(self, tokens: list[int]) -> int:
        raw = array("q", tokens)
        aligned = len(raw) // self.block_size * self.block_size
        return self.serve((RadixKey(raw, limit=searched(len(raw), self.block_size)), RadixKey(raw, limit=aligned)))

    def serve_bare_key(self, prompt: Prompt) -> tuple[Any, Any, Any]:
        return self.match_key(prompt), self._aligned(prompt), self._slots(prompt.blocks)

    def serve_bare(self, key: tuple[Any, Any, Any]) -> int:
        cache = self.cache
        match_key, insert_key, value = key
        result = cache.match_prefix(MatchPrefixParams(key=match_key))
        lock = cache.lock(result.last_device_node)
        matched: int = result.device_prefix_len
        over = cache.evictable_size() + cache.protected_size() + len(insert_key) - matched - self.capacity
        if over > 0:
            cache.evict(EvictParams(num_tokens=over))
        # The slots are the cached ones wherever the path is cached, so nothing is a duplicate.
        cache.insert(InsertParams(key=insert_key, value=value, prev_prefix_len=len(insert_key)))
        cache.unlock(lock)
        return matched
