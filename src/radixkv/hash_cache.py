"""The hash cache: automatic prefix caching by chained block hashes, one dict entry a block.

The way of vLLM's automatic prefix caching, with a keyed cryptographic hash: a forged collision would hand one tenant's
K and V to another.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from operator import index
from secrets import token_bytes

from radixkv.cache import CacheObserver, PrefixCache
from radixkv.counters import CacheCounters
from radixkv.errors import BlockCountError, InvariantError, LockError, NodeError, StaleNodeError
from radixkv.eviction import make_policy
from radixkv.keys import (
    DIGEST_BYTES,
    TokenKey,
    Tokens,
    block_hashes,
    block_ids,
    check_namespace,
    check_size,
    differing_ids,
)
from radixkv.types import Inserted, PrefixLocation, PrefixMatch, PrefixProbe, PrefixStats


class HashBlock:
    """One cached block, and the handle of the prefix that ends with it. Read it as you like; only the cache writes."""

    __slots__ = ("block", "cache", "children", "last_use", "locks", "name", "parent", "pins")

    def __init__(self, cache: HashCache, parent: HashBlock | None, name: bytes, block: int) -> None:
        self.cache: HashCache | None = cache
        """The cache it is in; None once it was evicted."""
        self.parent = parent
        """The block before it; None for the root."""
        self.name = name
        """Its chained hash, which stands for the whole prefix."""
        self.block = block
        """Its block id."""
        self.children = 0
        """Cached blocks that follow it."""
        self.locks = 0
        """Locks on this block and on all that follow it."""
        self.pins = 0
        """Locks on this very block."""
        self.last_use = 0
        """The logical time of its last use; never later than its parent's."""

    @property
    def num_blocks(self) -> int:
        """One."""
        return 1

    @property
    def content_name(self) -> bytes:
        """Its name, which is made of its content and of all before it."""
        return self.name

    def __repr__(self) -> str:
        state = "" if self.cache else "evicted "
        return f"<{state}HashBlock {self.name.hex()[:8]}: block {self.block}, {self.locks} locks>"


class HashCache(PrefixCache[HashBlock]):
    """A prefix cache over chained block hashes: evicts single blocks, a prefix's tail before its head.

    `PrefixCache` has the contract of every call. Against the radix cache: evicts no more than asked, costs a hash and a
    dict lookup a block (the hashes once for a `TokenKey`), and a few hundred bytes a block.

    Args:
        block_size: tokens a block.
        eviction: a name of `radixkv.POLICIES`.
        secret: key of the block hashes, at least 1 byte; by default 32 random ones. Give one where processes compare
            hashes; no answer of the cache depends on it.

    Raises:
        SizeError: a block size below 1, or an empty secret.
        UnknownNameError: no such policy.

    >>> cache = HashCache(block_size=2)
    >>> cache.insert([1, 2, 3, 4, 5], [10, 11]).new_blocks
    2
    >>> cache.match_prefix([1, 2, 3, 4, 9, 9]).blocks
    array('I', [10, 11])
    >>> cache.evict(1)
    array('I', [11])
    """

    def __init__(self, block_size: int, *, eviction: str = "lru", secret: bytes | None = None) -> None:
        self._block_size = check_size("block_size", block_size, 1)
        self._policy = make_policy(eviction)
        self._eviction = eviction
        secret = token_bytes(DIGEST_BYTES) if secret is None else secret
        check_size("bytes of the secret", len(secret), 1)
        self._secret = blake2b(secret).digest()  # a key has at most 64 bytes
        self._counters = CacheCounters()
        self._observers: list[CacheObserver] = []
        self._clock = 0
        self._blocks: dict[bytes, HashBlock] = {}
        self._locked_blocks = 0
        self._root = HashBlock(self, None, b"", 0)

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._block_size

    @property
    def cached_blocks(self) -> int:
        """All cached blocks. O(1)."""
        return len(self._blocks)

    @property
    def evictable_blocks(self) -> int:
        """Cached blocks that no lock holds: what `evict` can give up at most. O(1)."""
        return len(self._blocks) - self._locked_blocks

    @property
    def stats(self) -> PrefixStats:
        """A snapshot of the counters. O(1)."""
        return self._counters.snapshot()

    def match_prefix(
        self, tokens: Tokens, namespace: str | None = None, *, resumed: bool = False
    ) -> PrefixMatch[HashBlock]:
        """See `PrefixCache`. O(tokens) for a new key's hashes, then O(matched blocks)."""
        key = TokenKey.of(tokens)
        names = self._names(key, namespace, self._searched(key))
        path = self._walk(names)
        self._use(path, None)
        query_tokens, hit_tokens = len(key), len(path) * self._block_size
        counters = self._counters
        if resumed:
            counters.found_resumed(query_tokens, hit_tokens)
        else:
            counters.found(query_tokens, hit_tokens)
            if not names:
                counters.missed_short += 1
            elif len(path) < len(names):
                counters.missed(hit_tokens, names[len(path)])
        blocks = array("I", [step.block for step in path])
        for observer in self._observers:
            observer.matched(blocks)
        return PrefixMatch(hit_tokens, blocks, path[-1] if path else self._root)

    def match_length(self, tokens: Tokens, namespace: str | None = None) -> int:
        """See `PrefixCache`. O(tokens) for a new key's hashes, then O(matched blocks)."""
        return self.probe(tokens, namespace).matched_tokens

    def probe(self, tokens: Tokens, namespace: str | None = None) -> PrefixProbe:
        """See `PrefixCache`. O(tokens) for a new key's hashes, then O(matched blocks)."""
        key = TokenKey.of(tokens)
        path = self._walk(self._names(key, namespace, self._searched(key)))
        return PrefixProbe(len(path) * self._block_size, sum(not step.locks for step in path))

    def locate(self, tokens: Tokens, namespace: str | None = None) -> PrefixLocation[HashBlock]:
        """See `PrefixCache`. O(tokens) for a new key's hashes, then O(matched blocks)."""
        key = TokenKey.of(tokens)
        names = self._names(key, namespace, self._searched(key))
        path = self._walk(names)
        missing = names[len(path)] if len(path) < len(names) else None
        return PrefixLocation(len(path) * self._block_size, path[-1] if path else self._root, missing)

    def observe(self, observer: CacheObserver) -> None:
        """See `PrefixCache`."""
        self._observers.append(observer)

    def unobserve(self, observer: CacheObserver) -> None:
        """See `PrefixCache`."""
        self._observers = [other for other in self._observers if other is not observer]

    def insert(
        self, tokens: Tokens, blocks: Iterable[int], namespace: str | None = None, *, priority: int = 0
    ) -> Inserted[HashBlock]:
        """See `PrefixCache`. O(tokens) for a new key's hashes, then O(blocks)."""
        key = TokenKey.of(tokens)
        ids = block_ids(blocks)
        priority = index(priority)
        count = len(key) // self._block_size
        if len(ids) != count:
            raise BlockCountError(expected=count, given=len(ids))
        names = self._names(key, namespace, count)
        path = self._walk(names)
        self._use(path, priority)
        cached = array("I", [step.block for step in path])
        duplicates = differing_ids(ids[: len(path)], cached)
        node = path[-1] if path else self._root
        new_blocks = count - len(path)
        if new_blocks:
            if _is_evictable(node):
                self._policy.protected(node)
            for name, block in zip(names[len(path) :], ids[len(path) :], strict=True):
                node.children += 1
                node = self._blocks[name] = HashBlock(self, node, name, block)
                node.last_use = self._clock
                self._policy.inserted(node, priority)
            self._policy.evictable(node)
            self._counters.inserted_blocks += new_blocks
        if self._observers:
            first_new = names[len(path)] if new_blocks else None
            cached.extend(ids[len(path) :])
            for observer in self._observers:
                observer.inserted(cached, new_blocks, first_new)
        return Inserted(new_blocks, duplicates, node)

    def lock(self, node: HashBlock) -> None:
        """See `PrefixCache`. O(blocks from `node` to the root)."""
        self._check_node(node)
        if node is self._root:
            return
        if _is_evictable(node):
            self._policy.protected(node)
        node.pins += 1
        for step in self._up(node):
            if not step.locks:
                self._locked_blocks += 1
            step.locks += 1

    def unlock(self, node: HashBlock) -> None:
        """See `PrefixCache`. O(blocks from `node` to the root). No use: the prefix keeps its place in the order."""
        self._check_node(node)
        if node is self._root:
            return
        if not node.pins:
            below = ", only blocks after it are" if node.locks else ""
            raise LockError(
                f"the block is not locked{below}; {self._locked_blocks} blocks are", locked_blocks=self._locked_blocks
            )
        node.pins -= 1
        for step in self._up(node):
            step.locks -= 1
            if not step.locks:
                self._locked_blocks -= 1
        if _is_evictable(node):
            self._policy.evictable(node)

    def evict(self, n: int) -> array[int]:
        """See `PrefixCache`. Block by block, a prefix's tail before its head, and no more than `n`.

        O(log leaves) a block, amortized over uses (`RankedPolicy`).
        """
        wanted = check_size("n", n, 0)
        out, nodes = array("I"), []
        while len(out) < wanted and (node := self._policy.victim()) is not None:
            parent = _parent_of(node)
            del self._blocks[node.name]
            node.cache = node.parent = None
            self._policy.removed(node)
            parent.children -= 1
            if _is_evictable(parent):
                self._policy.evictable(parent)
            self._counters.ghost(node.name)
            out.append(node.block)
            nodes.append(node)
        self._counters.evicted_blocks += len(out)
        if nodes:
            for observer in self._observers:
                observer.evicted(nodes, out)
        return out

    def reset(self) -> array[int]:
        """See `PrefixCache`. Every handle but the root's is stale afterwards. O(cached blocks)."""
        if self._locked_blocks:
            raise LockError(
                f"{self._locked_blocks} blocks are locked: unlock before a reset", locked_blocks=self._locked_blocks
            )
        out = self.block_ids()
        for node in self._blocks.values():
            node.cache = node.parent = None
        self._blocks.clear()
        self._root.children = 0
        self._policy = make_policy(self._eviction)
        self._counters = CacheCounters()
        self._clock = 0
        for observer in self._observers:
            observer.cleared()
        return out

    def path_blocks(self, node: HashBlock) -> array[int]:
        """See `PrefixCache`. O(blocks of the path)."""
        self._check_node(node)
        blocks = array("I", [step.block for step in self._up(node)])
        blocks.reverse()
        return blocks

    def block_ids(self) -> array[int]:
        """See `PrefixCache`. O(cached blocks)."""
        return array("I", [node.block for node in self._blocks.values()])

    def check_invariants(self) -> None:
        """See `PrefixCache`. O(cached blocks)."""
        children: Counter[HashBlock] = Counter()
        locks: Counter[HashBlock] = Counter()
        for node in self._blocks.values():
            children[_parent_of(node)] += 1
            locks[_parent_of(node)] += node.locks
        for name, node in self._blocks.items():
            parent = _parent_of(node)
            facts = {
                "a block is found by its name": node.name == name,
                "a block names its cache": node.cache is self,
                "its parent is cached": parent is self._root or self._blocks.get(parent.name) is parent,
                "children are counted": node.children == children[node],
                "locks are the block's own and its children's": node.locks == node.pins + locks[node],
                "a block is used no later than its parent": parent is self._root or node.last_use <= parent.last_use,
            }
            for fact, holds in facts.items():
                if not holds:
                    raise InvariantError(f"{fact}: broken at {node!r}")
        locked = sum(node.locks > 0 for node in self._blocks.values())
        counted, kept = (children[self._root], locked), (self._root.children, self._locked_blocks)
        if counted != kept:
            raise InvariantError(f"the root's children and the locked blocks are {counted}, kept as {kept}")

    def _searched(self, key: TokenKey) -> int:
        """How many blocks a match may cover: those before the last token."""
        return max(len(key) - 1, 0) // self._block_size

    def _names(self, key: TokenKey, namespace: str | None, count: int) -> list[bytes]:
        check_namespace(namespace)
        return block_hashes(key, self._block_size, self._secret, namespace, count)

    def _walk(self, names: list[bytes]) -> list[HashBlock]:
        """The cached blocks of those names, up to the first that is missing."""
        path = []
        for name in names:
            node = self._blocks.get(name)
            if node is None:
                break
            path.append(node)
        return path

    def _use(self, path: list[HashBlock], priority: int | None) -> None:
        self._clock += 1
        for node in path:
            node.last_use = self._clock
        self._policy.used(path, priority)

    def _up(self, node: HashBlock) -> Iterator[HashBlock]:
        """The block and those before it, the root left out."""
        while node.parent is not None:
            yield node
            node = node.parent

    def _check_node(self, node: HashBlock) -> None:
        try:
            cache = node.cache
        except AttributeError:
            raise NodeError(f"a node of this cache is wanted, not {type(node).__name__}") from None
        if cache is not self:
            if cache is None:
                raise StaleNodeError("the block was evicted: match its prompt again")
            raise LockError("the node belongs to another cache", locked_blocks=self._locked_blocks)


def _parent_of(node: HashBlock) -> HashBlock:
    if node.parent is None:
        raise InvariantError("the root has no parent, and an evicted block neither")
    return node.parent


def _is_evictable(node: HashBlock) -> bool:
    return not node.locks and not node.children and node.parent is not None
