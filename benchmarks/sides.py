"""What is compared: one interface over radixkv's caches and the peers', each driven the way its own engine does.

Three rules keep a side honest. Keys and values in a side's native form are made by `match_key` and `insert_args`,
outside the timed code. `match` and `insert` are the cache's own call with nothing of ours around it, or as little
as the peer's interface asks for. `serve` is a whole request, with the same seven steps on every side.
"""

from array import array
from collections.abc import Callable
from typing import Any, Final, Protocol

from benchmarks.workloads import Prompt
from radixkv import HashCache, RadixCache, TokenKey

OURS: Final = ("radix", "hash")
PEERS: Final = ("sglang-rust", "sglang-python")


class Side(Protocol):
    """One prefix cache with `capacity` free blocks beside it, as `serve` uses them."""

    name: str
    block_size: int
    match: Callable[[Any], Any]
    """A native key to the cache's own result."""
    insert: Callable[..., Any]
    """Takes what `insert_args` made."""

    def match_key(self, prompt: Prompt) -> Any:
        """The native key of the part of a prompt that may be matched: never its last token."""

    def insert_args(self, prompt: Prompt) -> tuple[Any, ...]:
        """Native key and values of a prompt's full blocks, as a request has them that matched `prompt.known` blocks."""

    def insert_again_args(self, prompt: Prompt) -> tuple[Any, ...]:
        """The same with other ids, as a request has them that computed every block itself: all of them duplicates."""

    def match_ids(self, key: Any) -> Any:
        """Match, and get the ids of what matched: our `match` returns them, SGLang's needs a second call."""

    def match_tokens(self, tokens: list[int]) -> Any:
        """Match a plain list: the conversion to the native key is part of the call."""

    def matched(self, result: Any) -> int:
        """The matched tokens of a result."""

    def handle(self, result: Any) -> Any:
        """The node of a result."""

    def lock_unlock(self, handle: Any) -> None:
        """Lock a node's path and unlock it."""

    def evict(self, blocks: int) -> Any:
        """Evict at least that many blocks."""

    def cached_blocks(self) -> int:
        """How many blocks are cached."""

    def serve_key(self, prompt: Prompt) -> Any:
        """What `serve` takes, made outside the timed code."""

    def serve(self, key: Any) -> int:
        """One request: match, lock, evict if short, allocate, insert, free the duplicates, unlock. Matched tokens."""

    def serve_tokens(self, tokens: list[int]) -> int:
        """`serve` from a plain list."""

    def serve_bare(self, key: Any) -> int:
        """`serve` with ids made beforehand: the cache's calls alone, no pool. `key` is of `serve_bare_key`."""

    def serve_bare_key(self, prompt: Prompt) -> Any:
        """What `serve_bare` takes."""


class Ours:
    """RadixCache or HashCache of this checkout."""

    def __init__(self, name: str, block_size: int, capacity: int = 0) -> None:
        self.name = name
        self.block_size = block_size
        self.capacity = capacity
        self.cache: RadixCache | HashCache = RadixCache(block_size) if name == "radix" else HashCache(block_size)
        self.match: Callable[[Any], Any] = self.cache.match_prefix
        self.insert: Callable[..., Any] = self.cache.insert
        self.free = array("I", range(capacity))

    def match_key(self, prompt: Prompt) -> TokenKey:
        return TokenKey(prompt.tokens)

    def insert_args(self, prompt: Prompt) -> "tuple[TokenKey, array[int]]":
        return TokenKey(prompt.tokens), prompt.blocks

    def insert_again_args(self, prompt: Prompt) -> "tuple[TokenKey, array[int]]":
        return TokenKey(prompt.tokens), array("I", (block + (1 << 31) for block in prompt.blocks))

    def match_ids(self, key: TokenKey) -> Any:
        return self.match(key)

    def match_tokens(self, tokens: list[int]) -> Any:
        return self.match(tokens)

    def matched(self, result: Any) -> int:
        return int(result.matched_tokens)

    def handle(self, result: Any) -> Any:
        return result.node

    def lock_unlock(self, handle: Any) -> None:
        self.cache.lock(handle)
        self.cache.unlock(handle)

    def evict(self, blocks: int) -> "array[int]":
        return self.cache.evict(blocks)

    def cached_blocks(self) -> int:
        return self.cache.cached_blocks

    def serve_key(self, prompt: Prompt) -> TokenKey:
        return TokenKey(prompt.tokens)

    def serve(self, key: TokenKey) -> int:
        cache, free = self.cache, self.free
        matched, blocks, node = cache.match_prefix(key)
        cache.lock(node)  # type: ignore[arg-type]
        need = len(key) // self.block_size - len(blocks)
        short = need - len(free)
        if short > 0:
            free.extend(cache.evict(short))
        start = len(free) - need
        blocks += free[start:]
        del free[start:]
        free.extend(cache.insert(key, blocks).duplicates)
        cache.unlock(node)  # type: ignore[arg-type]
        return matched

    def serve_tokens(self, tokens: list[int]) -> int:
        return self.serve(TokenKey(tokens))

    def serve_bare_key(self, prompt: Prompt) -> "tuple[TokenKey, array[int]]":
        return TokenKey(prompt.tokens), prompt.blocks

    def serve_bare(self, key: "tuple[TokenKey, array[int]]") -> int:
        cache = self.cache
        tokens, blocks = key
        match = cache.match_prefix(tokens)
        cache.lock(match.node)  # type: ignore[arg-type]
        over = cache.cached_blocks + len(blocks) - len(match.blocks) - self.capacity
        if over > 0:
            cache.evict(over)
        cache.insert(tokens, blocks)
        cache.unlock(match.node)  # type: ignore[arg-type]
        return match.matched_tokens


def make_side(name: str, block_size: int, capacity: int = 0, *, pool: bool = True) -> Side:
    """A fresh side by name. `capacity` blocks are free at first; without a pool it is only a bound for `serve_bare`."""
    if name in OURS:
        return Ours(name, block_size, capacity)
    from benchmarks.sglang_peer import SGLang

    return SGLang(name, block_size, capacity, pool=pool)
