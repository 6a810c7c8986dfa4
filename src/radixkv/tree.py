"""The radix tree: prompts by their shared beginnings, a value for every block.

The tree knows structure and nothing of caching: walking, splitting, attaching, pruning, lock counts. Who is evicted,
what counts as a hit and who owns a block is decided above it.

```text
root ── "sys A" ──┬── "question 1"           a label is a whole number of blocks, as key bytes;
        3 blocks  │      2 blocks            children are found by their first block's bytes;
                  └── "question 2" ── …      a step down an edge is one memcmp
```
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from typing import Generic, TypeAlias, TypeVar
from zlib import crc32

from radixkv.drawing import draw
from radixkv.errors import BlockCountError, InvariantError, LockError, NodeError, StaleNodeError
from radixkv.keys import TOKEN_BYTES, TokenKey, Tokens, check_namespace, check_size, common_prefix

T = TypeVar("T")

Edge: TypeAlias = bytes | tuple[str, bytes]
"""What finds a child: its first block's bytes; under the root, with the namespace if there is one."""


class Node(Generic[T]):
    """A run of blocks that every prompt below shares, and the handle of the prefix that ends with it.

    A handle goes on meaning the same prefix when its edge is split. Read it as you like; only the tree writes.
    """

    __slots__ = ("blocks", "children", "edge", "label", "last_use", "locks", "parent", "path_hash", "pins", "tree")

    def __init__(
        self, tree: RadixTree[T], parent: Node[T] | None, edge: Edge, label: bytes, blocks: MutableSequence[T]
    ) -> None:
        self.tree: RadixTree[T] | None = tree
        """The tree it stands in; None once it was pruned."""
        self.parent = parent
        """The node before it; None for the root, and once pruned."""
        self.edge = edge
        """Its key in `parent.children`."""
        self.label = label
        """The key bytes of its tokens."""
        self.blocks = blocks
        """One value a block."""
        self.children: dict[Edge, Node[T]] = {}
        self.locks = 0
        """Locks on this node and on all below it: while positive, nothing here may go."""
        self.pins = 0
        """Locks on this very node."""
        self.last_use = 0
        """The logical time of its last use; never later than its parent's."""
        self.path_hash: int | None = None
        """`RadixTree.path_hash`, once somebody asked."""

    @property
    def num_blocks(self) -> int:
        """How many blocks it has. O(1)."""
        return len(self.blocks)

    @property
    def content_name(self) -> int:
        """A checksum of the prefix up to the end of its first block (`RadixTree.block_name`), while it is in a tree."""
        parent, edge = self.parent, self.edge
        if self.tree is None or parent is None:
            raise StaleNodeError("the root and a pruned node have no content to name")
        if parent.path_hash is not None and type(edge) is bytes:
            return crc32(edge, parent.path_hash)
        namespace, first = edge if isinstance(edge, tuple) else (None, edge)
        return self.tree.block_name(parent, first, namespace)

    def __repr__(self) -> str:
        state = "pruned " if self.tree is None else ""  # an empty tree is falsy
        tokens = len(self.label) // TOKEN_BYTES
        return f"<{state}Node: {tokens} tokens, {len(self.blocks)} blocks, {self.locks} locks>"


class RadixTree(Generic[T]):
    """A radix tree over blocks of tokens that keeps a value of any type for every block.

    It stands alone where something other than a cache is keyed by prompt prefixes, say the workers that hold a block:

    >>> tree = RadixTree[str](block_size=2)
    >>> node = tree.insert([1, 2, 3, 4, 5], ["a", "b"])
    >>> tree.match([1, 2, 3, 9])
    (2, ['a'])
    >>> node = tree.insert([1, 2, 7, 8], ["ignored: there is one", "c"])
    >>> print(tree)
    3 nodes, 3 blocks of 2 tokens
    └─ [1 2] a
       ├─ [3 4] b
       └─ [7 8] c

    Args:
        block_size: tokens a block, 1 or more.

    Raises:
        SizeError: a block size below 1.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = check_size("block_size", block_size, 1)
        self.stride = self.block_size * TOKEN_BYTES
        """Key bytes a block."""
        self.num_nodes = 0
        """Nodes below the root."""
        self.num_blocks = 0
        self.locked_blocks = 0
        """Blocks of nodes whose lock count is above 0."""
        self.root: Node[T] = Node(self, None, b"", b"", [])
        self.root.path_hash = 0

    # --- by itself -------------------------------------------------------------------------------------------------

    def match(self, tokens: Tokens, namespace: str | None = None) -> tuple[int, list[T]]:
        """How many leading tokens are here, the last one too, and the values of their blocks. Changes nothing.

        O(matched tokens), at `memcmp` speed.
        """
        check_namespace(namespace)
        data = TokenKey.of(tokens).data
        path, matched, inside = self.walk(data, len(data) // self.stride * self.stride, namespace)
        runs = [node.blocks for node in path]
        if inside:
            runs[-1] = runs[-1][: inside // self.stride]
        return matched // TOKEN_BYTES, [value for run in runs for value in run]

    def insert(self, tokens: Tokens, values: Sequence[T], namespace: str | None = None) -> Node[T]:
        """Add what of the full blocks of `tokens` is not here yet; a block that is here keeps its value. O(tokens).

        Returns the node of the last full block.

        Raises:
            BlockCountError: not exactly one value for every full block; nothing changed.
        """
        check_namespace(namespace)
        data = TokenKey.of(tokens).data
        count = len(data) // self.stride
        if len(values) != count:
            raise BlockCountError(expected=count, given=len(values))
        end = count * self.stride
        path, matched, inside = self.walk(data, end, namespace)
        node = self.split(path[-1], inside) if inside else path[-1] if path else self.root
        if matched == end:
            return node
        return self.attach(node, data[matched:end], list(values[matched // self.stride :]), namespace)

    def __len__(self) -> int:
        return self.num_nodes

    def __iter__(self) -> Iterator[Node[T]]:
        """Every node below the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def __str__(self) -> str:
        return draw(self)

    # --- structure -------------------------------------------------------------------------------------------------

    def walk(self, key: bytes, end: int, namespace: str | None) -> tuple[list[Node[T]], int, int]:
        """Follow the first `end` bytes of `key`, a whole number of blocks, as far as they are here. Changes nothing.

        One `memcmp` and one dict lookup a node, and where label and key part ways a bisection over copies of what is
        left of both: O(tokens searched) at `memcmp` speed.

        Returns:
            The nodes below the root that it enters, in order; the bytes of the key that are here, in whole blocks; and
            how many of those are in the last node, if the walk ends inside its label, else 0.
        """
        path: list[Node[T]] = []
        if end <= 0:
            return path, 0, 0
        stride = self.stride
        first = key[:stride]
        node = self.root.children.get(first if namespace is None else (namespace, first))
        position = 0
        while node is not None:
            path.append(node)
            label = node.label
            if not key.startswith(label, position, end):
                inside = common_prefix(key, label[: end - position], stride, start=position)
                return path, position + inside, inside
            position += len(label)
            if position == end:
                break
            node = node.children.get(key[position : position + stride])
        return path, position, 0

    def split(self, node: Node[T], at: int) -> Node[T]:
        """Cut `at` bytes off the node's beginning into a new parent, and return that.

        `node` goes on ending where it ended, with the locks it had; the new upper half takes the lock count and the
        last use along. O(label).

        Raises:
            StaleNodeError, LockError: as `check_node`.
            NodeError: `at` is no whole number of blocks inside the label.
        """
        self.check_node(node)
        if at % self.stride or not 0 < at < len(node.label):
            raise NodeError(f"a label of {len(node.label)} bytes, {self.stride} a block, cannot be split at {at}")
        parent, count = parent_of(node), at // self.stride
        upper = Node(self, parent, node.edge, node.label[:at], node.blocks[:count])
        upper.locks = node.locks
        upper.last_use = node.last_use
        node.label = node.label[at:]
        node.blocks = node.blocks[count:]
        node.edge = node.label[: self.stride]
        node.parent = upper
        upper.children[node.edge] = node
        parent.children[upper.edge] = upper
        self.num_nodes += 1
        return upper

    def attach(self, parent: Node[T], label: bytes, blocks: MutableSequence[T], namespace: str | None) -> Node[T]:
        """Hang a new leaf with `label`, a whole number of blocks, under `parent`, and return it. O(1).

        `namespace` counts under the root only: below, it is the parent's.

        Raises:
            StaleNodeError, LockError: as `check_node`.
            BlockCountError: not one value for every block of the label, or an empty label.
            NodeError: a child of `parent` begins with the same block.
        """
        if parent.tree is not self:
            self.check_node(parent)
        if not 0 < len(label) == len(blocks) * self.stride:
            raise BlockCountError(expected=max(len(label) // self.stride, 1), given=len(blocks))
        first = label[: self.stride]
        edge = first if namespace is None or parent is not self.root else (namespace, first)
        if edge in parent.children:
            raise NodeError("a child of the node begins with the same block: walk there")
        leaf = parent.children[edge] = Node(self, parent, edge, label, blocks)
        self.num_nodes += 1
        self.num_blocks += len(blocks)
        return leaf

    def prune(self, leaf: Node[T]) -> Node[T]:
        """Take an unlocked leaf out of the tree and return the parent it had. Its handle is stale from now on. O(1).

        Raises:
            StaleNodeError, LockError: as `check_node`.
            NodeError: it is locked, or no leaf, or the root.
        """
        if leaf.tree is not self:
            self.check_node(leaf)
        parent = leaf.parent
        if parent is None or leaf.children or leaf.locks:
            raise NodeError(f"not an unlocked leaf: {len(leaf.children)} children, {leaf.locks} locks")
        del parent.children[leaf.edge]
        leaf.tree = leaf.parent = None
        self.num_nodes -= 1
        self.num_blocks -= len(leaf.blocks)
        return parent

    def clear(self) -> None:
        """Take every node out, locked or not; all handles but the root's are stale afterwards. O(nodes)."""
        for node in list(self):
            node.tree = node.parent = None
        self.root.children.clear()
        self.num_nodes = self.num_blocks = self.locked_blocks = 0

    def path(self, node: Node[T]) -> list[Node[T]]:
        """The nodes from below the root down to `node`. O(depth)."""
        self.check_node(node)
        path = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        path.reverse()
        return path

    def path_hash(self, node: Node[T]) -> int:
        """A 32-bit checksum of the prefix that ends with `node`, namespace included; equal prefixes agree.

        It outlives the node, so that what was evicted can be recognized. Not safe against forgery. Kept with the node:
        every byte of a label is read at most once over the node's life.
        """
        pending = []
        while node.path_hash is None:
            pending.append(node)
            node = parent_of(node)
        checksum = node.path_hash
        for below in reversed(pending):
            if isinstance(below.edge, tuple):
                checksum = namespace_hash(below.edge[0])
            checksum = below.path_hash = crc32(below.label, checksum)
        return checksum

    def block_name(self, node: Node[T], block: bytes, namespace: str | None) -> int:
        """A 32-bit checksum of the prefix that ends with `node` and then `block`, whether that is here or not.

        `namespace` counts where `node` is the root. Costs as `path_hash`.
        """
        before = namespace_hash(namespace) if node.parent is None else node.path_hash or self.path_hash(node)
        return crc32(block, before)

    # --- locks -----------------------------------------------------------------------------------------------------

    def check_node(self, node: Node[T]) -> None:
        """Raise unless `node` stands in this tree.

        Raises:
            StaleNodeError: it was pruned.
            LockError: it is another tree's.
            NodeError: it is no node of a tree.
        """
        try:
            tree = node.tree
        except AttributeError:
            raise NodeError(f"a node of this cache is wanted, not {type(node).__name__}") from None
        if tree is not self:
            if tree is None:
                raise StaleNodeError("the node was evicted: match its prompt again")
            raise LockError("the node belongs to another cache", locked_blocks=self.locked_blocks)

    def lock(self, node: Node[T]) -> None:
        """Count a lock on the node and all its ancestors; on the root, nothing. O(depth).

        Raises:
            StaleNodeError, LockError, NodeError: as `check_node`; nothing changed.
        """
        try:
            known = node.tree is self
        except AttributeError:
            known = False
        if not known:
            self.check_node(node)
        if node is self.root:
            return
        node.pins += 1
        while (parent := node.parent) is not None:
            if not node.locks:
                self.locked_blocks += len(node.blocks)
            node.locks += 1
            node = parent

    def unlock(self, node: Node[T]) -> None:
        """Take back one `lock` of this very node; on the root, nothing. O(depth).

        Raises:
            StaleNodeError, LockError, NodeError: as `check_node`, or the node itself is not locked; nothing changed.
        """
        try:
            known = node.tree is self
        except AttributeError:
            known = False
        if not known:
            self.check_node(node)
        if node is self.root:
            return
        if not node.pins:
            below = ", only nodes below it are" if node.locks else ""
            raise LockError(
                f"the node is not locked{below}; {self.locked_blocks} blocks are", locked_blocks=self.locked_blocks
            )
        node.pins -= 1
        while (parent := node.parent) is not None:
            node.locks -= 1
            if not node.locks:
                self.locked_blocks -= len(node.blocks)
            node = parent

    # --- invariants ------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Recount everything and compare. O(tree).

        Raises:
            InvariantError: the first contradiction found.
        """
        nodes = blocks = locked = 0
        for node in self:
            parent = parent_of(node)
            nodes += 1
            blocks += len(node.blocks)
            locked += len(node.blocks) if node.locks else 0
            first = node.label[: self.stride]
            edge = (node.edge[0], first) if isinstance(node.edge, tuple) else first
            path_hash, node.path_hash = node.path_hash, None
            facts = {
                "a node names its tree": node.tree is self,
                "a label is a whole, positive number of blocks": len(node.label) == len(node.blocks) * self.stride > 0,
                "a parent finds its child by the first block": node.edge == edge and parent.children[edge] is node,
                "only depth one knows namespaces": parent is self.root or isinstance(node.edge, bytes),
                "locks are the node's own and its children's": node.locks
                == node.pins + sum(child.locks for child in node.children.values()),
                "a node is used no later than its parent": parent is self.root or node.last_use <= parent.last_use,
                "a kept path hash is right": path_hash in (None, self.path_hash(node)),
            }
            node.path_hash = path_hash
            for fact, holds in facts.items():
                if not holds:
                    raise InvariantError(f"{fact}: broken at {node!r} under {parent!r}")
        counted, kept = (nodes, blocks, locked), (self.num_nodes, self.num_blocks, self.locked_blocks)
        if counted != kept:
            raise InvariantError(f"nodes, blocks and locked blocks are {counted}, kept as {kept}")


def namespace_hash(namespace: str | None) -> int:
    """Where the path hashes of a namespace begin."""
    return 0 if namespace is None else crc32(namespace.encode(errors="surrogatepass"), 1)


def parent_of(node: Node[T]) -> Node[T]:
    """The parent of a node that has one."""
    if node.parent is None:
        raise InvariantError("the root has no parent, and a pruned node neither")
    return node.parent
