"""The radix cache: RadixAttention's cache, block-granular, over a radix tree.

After Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs" (2024), section 3.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from operator import index
from typing import Final, cast

from radixkv.cache import CacheObserver, PrefixCache
from radixkv.counters import CacheCounters
from radixkv.errors import BlockCountError, LockError
from radixkv.eviction import make_policy
from radixkv.keys import TOKEN_BYTES, TokenKey, Tokens, block_ids, check_namespace, check_size, differing_ids
from radixkv.tree import Node, RadixTree
from radixkv.types import Inserted, PrefixLocation, PrefixMatch, PrefixProbe, PrefixStats

MANY_NODES: Final = 6
"""From so many nodes on it is cheaper to join their ids, two copies of each, than to let an array grow node by node."""


class RadixCache(PrefixCache[Node[int]]):
    """A prefix cache over a radix tree: any prefix of whole blocks matches, whole leaves are evicted.

    `PrefixCache` has the contract of every call. A step of the walk is one `memcmp` and one dict lookup a node.

    Args:
        block_size: tokens a block; 1 matches token by token.
        eviction: a name of `radixkv.POLICIES`.

    Raises:
        SizeError: a block size below 1.
        UnknownNameError: no such policy.

    >>> cache = RadixCache(block_size=2)
    >>> cache.insert([1, 2, 3, 4, 5], [10, 11]).new_blocks
    2
    >>> cache.match_prefix([1, 2, 3, 4, 9, 9]).blocks
    array('I', [10, 11])
    >>> cache.match_prefix([1, 2, 3, 4]).matched_tokens    # the last token is always computed
    2
    >>> cache.evict(1)
    array('I', [11])
    """

    def __init__(self, block_size: int, *, eviction: str = "lru") -> None:
        self._tree = RadixTree[int](block_size)
        self._policy = make_policy(eviction)
        self._eviction = eviction
        self._counters = CacheCounters()
        self._observers: list[CacheObserver] = []
        self._clock = 0

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._tree.block_size

    @property
    def tree(self) -> RadixTree[int]:
        """The tree, to read and to print; changing it is the cache's business."""
        return self._tree

    @property
    def cached_blocks(self) -> int:
        """All cached blocks. O(1)."""
        return self._tree.num_blocks

    @property
    def evictable_blocks(self) -> int:
        """Cached blocks that no lock holds: what `evict` can give up at most. O(1)."""
        return self._tree.num_blocks - self._tree.locked_blocks

    @property
    def stats(self) -> PrefixStats:
        """A snapshot of the counters. O(1)."""
        return self._counters.snapshot()

    def match_prefix(
        self, tokens: Tokens, namespace: str | None = None, *, resumed: bool = False
    ) -> PrefixMatch[Node[int]]:
        """See `PrefixCache`. Splits an edge where the match ends inside it; the unmatched tail keeps its old time.

        O(matched tokens) at `memcmp` speed, and O(nodes of the path).
        """
        data = tokens.data if type(tokens) is TokenKey else TokenKey(tokens).data
        if namespace is not None:
            check_namespace(namespace)
        tree = self._tree
        end = self._searched(data)
        path, matched, inside = tree.walk(data, end, namespace)
        if inside:
            path[-1] = self._split(path[-1], inside)
        blocks = self._use(path, None)
        node = path[-1] if path else tree.root
        query_tokens, hit_tokens = len(data) // TOKEN_BYTES, matched // TOKEN_BYTES
        counters = self._counters
        if resumed:
            counters.found_resumed(query_tokens, hit_tokens)
        else:
            counters.found(query_tokens, hit_tokens)
            if matched < end:
                missing = data[matched : matched + tree.stride]
                counters.missed(
                    hit_tokens, tree.block_name(node, missing, namespace) if counters.evicted_blocks else None
                )
            elif end <= 0:
                counters.missed_short += 1
        for observer in self._observers:
            observer.matched(blocks)
        return _match((hit_tokens, blocks, node))

    def match_length(self, tokens: Tokens, namespace: str | None = None) -> int:
        """See `PrefixCache`. O(matched tokens) at `memcmp` speed."""
        key = TokenKey.of(tokens)
        check_namespace(namespace)
        return self._tree.walk(key.data, self._searched(key.data), namespace)[1] // TOKEN_BYTES

    def probe(self, tokens: Tokens, namespace: str | None = None) -> PrefixProbe:
        """See `PrefixCache`. O(matched tokens) at `memcmp` speed."""
        key = TokenKey.of(tokens)
        check_namespace(namespace)
        path, matched, inside = self._tree.walk(key.data, self._searched(key.data), namespace)
        unlocked = sum(len(node.blocks) for node in path if not node.locks)
        if inside and not path[-1].locks:
            unlocked -= len(path[-1].blocks) - inside // self._tree.stride
        return PrefixProbe(matched // TOKEN_BYTES, unlocked)

    def locate(self, tokens: Tokens, namespace: str | None = None) -> PrefixLocation[Node[int]]:
        """See `PrefixCache`. O(matched tokens) at `memcmp` speed, and a checksum of what was never asked for before."""
        key = TokenKey.of(tokens)
        check_namespace(namespace)
        data, tree = key.data, self._tree
        end = self._searched(data)
        path, matched, inside = tree.walk(data, end, namespace)
        missing = None
        if matched < end:
            # Where the walk ends inside a label, the name is worked out from the label's beginning: no split is needed.
            whole = path[:-1] if inside else path
            missing = tree.block_name(
                whole[-1] if whole else tree.root, data[matched - inside : matched + tree.stride], namespace
            )
        return PrefixLocation(matched // TOKEN_BYTES, path[-1] if path else tree.root, missing)

    def observe(self, observer: CacheObserver) -> None:
        """See `PrefixCache`."""
        self._observers.append(observer)

    def unobserve(self, observer: CacheObserver) -> None:
        """See `PrefixCache`."""
        self._observers = [other for other in self._observers if other is not observer]

    def insert(
        self, tokens: Tokens, blocks: Iterable[int], namespace: str | None = None, *, priority: int = 0
    ) -> Inserted[Node[int]]:
        """See `PrefixCache`. A longer prompt gets a child node: no leaf grows, so no handle changes its meaning.

        O(tokens) at `memcmp` speed, and O(nodes of the path).
        """
        data = tokens.data if type(tokens) is TokenKey else TokenKey(tokens).data
        if namespace is not None:
            check_namespace(namespace)
        ids = block_ids(blocks)
        priority = index(priority)
        tree = self._tree
        stride = tree.stride
        count = len(data) // stride
        if len(ids) != count:
            raise BlockCountError(expected=count, given=len(ids))
        end = count * stride
        path, matched, inside = tree.walk(data, end, namespace)
        if inside:
            path[-1] = self._split(path[-1], inside)
        cached = self._use(path, priority)
        start = len(cached)
        given = ids[:start]
        duplicates = array("I") if given == cached else differing_ids(given, cached)
        parent = node = path[-1] if path else tree.root
        if start < count:
            policy = self._policy
            if not parent.locks and not parent.children and parent.parent is not None:  # it was evictable
                policy.protected(parent)
            node = tree.attach(parent, data[matched:end], ids[start:], namespace)
            node.last_use = self._clock
            policy.inserted(node, priority)
            policy.evictable(node)
            self._counters.inserted_blocks += count - start
        if self._observers:
            name = tree.block_name(parent, data[matched : matched + stride], namespace) if start < count else None
            cached.extend(ids[start:])
            for observer in self._observers:
                observer.inserted(cached, count - start, name)
        return _inserted((count - start, duplicates, node))

    def lock(self, node: Node[int]) -> None:
        """See `PrefixCache`. O(nodes from `node` to the root)."""
        self._tree.lock(node)
        if node.locks == 1 and not node.children and node.parent is not None:  # it was evictable
            self._policy.protected(node)

    def unlock(self, node: Node[int]) -> None:
        """See `PrefixCache`. O(nodes from `node` to the root). No use: the prefix keeps its place in the order."""
        self._tree.unlock(node)
        if not node.locks and not node.children and node.parent is not None:
            self._policy.evictable(node)

    def evict(self, n: int) -> array[int]:
        """See `PrefixCache`. Whole leaves, so it may give up more than `n`; a parent left childless is a leaf.

        Returns ids leaf by leaf, each in path order. O(log leaves) a leaf, amortized over uses (`RankedPolicy`).
        """
        wanted = check_size("n", n, 0)
        tree, policy, counters = self._tree, self._policy, self._counters
        out, leaves = array("I"), []
        while len(out) < wanted and (leaf := policy.victim()) is not None:
            counters.ghost(leaf.content_name)  # a lookup of the leaf will find its first block missing
            parent = tree.prune(leaf)
            policy.removed(leaf)
            if not parent.children and not parent.locks and parent.parent is not None:
                policy.evictable(parent)
            out.extend(leaf.blocks)
            leaves.append(leaf)
        counters.evicted_blocks += len(out)
        if leaves:
            for observer in self._observers:
                observer.evicted(leaves, out)
        return out

    def reset(self) -> array[int]:
        """See `PrefixCache`. Every handle is stale afterwards. O(nodes)."""
        tree = self._tree
        if tree.locked_blocks:
            raise LockError(
                f"{tree.locked_blocks} blocks are locked: unlock before a reset", locked_blocks=tree.locked_blocks
            )
        out = self.block_ids()
        tree.clear()
        self._policy = make_policy(self._eviction)
        self._counters = CacheCounters()
        self._clock = 0
        for observer in self._observers:
            observer.cleared()
        return out

    def path_blocks(self, node: Node[int]) -> array[int]:
        """See `PrefixCache`. O(nodes of the path)."""
        blocks = array("I")
        for step in self._tree.path(node):
            blocks.extend(step.blocks)
        return blocks

    def block_ids(self) -> array[int]:
        """See `PrefixCache`. O(nodes)."""
        blocks = array("I")
        for node in self._tree:
            blocks.extend(node.blocks)
        return blocks

    def check_invariants(self) -> None:
        """See `PrefixCache`. O(nodes)."""
        self._tree.check_invariants()

    def _searched(self, data: bytes) -> int:
        """Key bytes that a match may cover: the whole blocks before the last token. Not above 0 if there are none."""
        stride = self._tree.stride
        return (len(data) - TOKEN_BYTES) // stride * stride

    def _use(self, path: list[Node[int]], priority: int | None) -> array[int]:
        """Stamp the nodes of a path, tell the policy, and return a copy of the ids they hold."""
        self._clock = now = self._clock + 1
        blocks = array("I")
        if len(path) < MANY_NODES:
            for node in path:
                node.last_use = now
                blocks.extend(node.blocks)
        else:
            for node in path:
                node.last_use = now
            blocks.frombytes(b"".join(cast("list[array[int]]", [node.blocks for node in path])))
        self._policy.used(path, priority)
        return blocks

    def _split(self, node: Node[int], at: int) -> Node[int]:
        upper = self._tree.split(node, at)
        self._policy.split(upper, node)
        return upper


# Half the price of calling the named tuples by name, on the hot path.
_match: Callable[[tuple[int, array[int], Node[int]]], PrefixMatch[Node[int]]] = partial(tuple.__new__, PrefixMatch)
_inserted: Callable[[tuple[int, array[int], Node[int]]], Inserted[Node[int]]] = partial(tuple.__new__, Inserted)
