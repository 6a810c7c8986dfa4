"""A radix tree as text that fits a screen, however big the tree."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixkv.tree import Node, RadixTree

TOKENS_SHOWN = 8
VALUES_SHOWN = 4
CHAIN_SHOWN = 4


def draw(tree: RadixTree[Any], *, max_depth: int = 6, max_width: int = 6, max_lines: int = 40) -> str:
    """The tree as text: labels and values shortened, locks, and ages in uses since the newest.

    A chain of only children stands on one line, joined by arrows. At each fork the `max_width` most recently used
    branches are drawn, `max_depth` forks deep, and the branches nearest the root get their lines first, about
    `max_lines` of them in all. What is left out is counted. O(lines drawn, and the children of the nodes on them).

    >>> from radixkv import RadixTree
    >>> tree = RadixTree[int](block_size=1)
    >>> for last in range(1204):
    ...     node = tree.insert([7, 8, last], [0, 1, 2 + last])
    >>> print(draw(tree, max_width=2))
    1,205 nodes, 1,206 blocks of 1 token
    └─ [7 8] 0 1
       ├─ [0] 2
       ├─ [1] 3
       └─ … 1,202 more
    """
    newest = max((child.last_use for child in tree.root.children.values()), default=0)
    chosen = _choose(tree.root, max_depth, max_width, max_lines)
    locked = f", {tree.locked_blocks:,} locked" if tree.locked_blocks else ""
    size = f"{_count(tree.num_nodes, 'node')}, {_count(tree.num_blocks, 'block')} of {_count(tree.block_size, 'token')}"
    return "\n".join([size + locked, *_rows(tree.root, chosen, "", newest)])


def _choose(root: Node[Any], max_depth: int, max_width: int, max_lines: int) -> dict[Node[Any], list[Node[Any]]]:
    """The branches to draw under each fork: breadth first, so that a deep one does not use up the lines of the rest."""
    chosen: dict[Node[Any], list[Node[Any]]] = {}
    waiting = deque([(root, 0)])
    lines = 0
    while waiting and lines < max_lines:
        fork, depth = waiting.popleft()
        if depth < max_depth and fork.children:
            chosen[fork] = nlargest(max_width, fork.children.values(), key=lambda child: child.last_use)
            lines += len(chosen[fork])
            waiting.extend((_chain(branch)[-1], depth + 1) for branch in chosen[fork])
    return chosen


def _rows(fork: Node[Any], chosen: dict[Node[Any], list[Node[Any]]], indent: str, newest: int) -> Iterator[str]:
    """The lines below one fork. As deep as the drawing is, not the tree."""
    branches = chosen.get(fork, [])
    left_out = len(fork.children) - len(branches)
    for branch in branches:
        last = branch is branches[-1] and not left_out
        chain = _chain(branch)
        shown = [_describe(node, newest) for node in chain[:CHAIN_SHOWN]]
        if len(chain) > CHAIN_SHOWN:
            shown.append(f"… {len(chain) - CHAIN_SHOWN:,} more")
        yield f"{indent}{'└─' if last else '├─'} {' → '.join(shown)}"
        yield from _rows(chain[-1], chosen, indent + ("   " if last else "│  "), newest)
    if left_out:
        yield f"{indent}└─ … {left_out:,} more"


def _chain(node: Node[Any]) -> list[Node[Any]]:
    """The node and what follows it without a fork."""
    chain = [node]
    while len(node.children) == 1:
        (node,) = node.children.values()
        chain.append(node)
    return chain


def _describe(node: Node[Any], newest: int) -> str:
    namespace = f"{node.edge[0]!r} " if isinstance(node.edge, tuple) else ""
    label = _shorten(array("I", node.label), TOKENS_SHOWN)
    locks = f", {_count(node.locks, 'lock')}" if node.locks else ""
    age = f", age {newest - node.last_use:,}" if newest else ""
    return f"{namespace}[{label}] {_shorten(node.blocks, VALUES_SHOWN)}{locks}{age}"


def _shorten(items: Sequence[object], shown: int) -> str:
    """The first ones and the last, with how many there are if some are left out."""
    if len(items) <= shown:
        return " ".join(map(str, items))
    return f"{' '.join(map(str, items[: shown - 1]))} … {items[-1]} ({len(items):,})"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
