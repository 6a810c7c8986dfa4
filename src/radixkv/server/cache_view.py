"""The cache as an operator sees it: sizes, counters, the prefixes used last, and the tree drawn.

Everything here runs in the engine's thread between two steps, so what is asked often looks at a bounded part of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict
from heapq import heapify, heappop, heappush, nlargest
from itertools import count
from typing import Any, Final

from radixkv.errors import InvariantError
from radixkv.keys import TOKEN_BYTES
from radixkv.manager import BlockManager
from radixkv.radix_cache import RadixCache
from radixkv.tree import Node

Json = dict[str, Any]
Decode = Callable[[Sequence[int]], str]

PREFIXES_SHOWN: Final = 20
BRANCHES_SHOWN: Final = 8
LINES_SHOWN: Final = 60
LETTERS_SHOWN: Final = 48


def view(manager: BlockManager, *, decode: Decode | None, tree: bool = False, check: bool = False) -> Json:
    """Sizes, counters and prefixes as JSON; with `decode`, their text too, and with `tree`, a drawing.

    O(nodes shown, and the children of those). With `check`, every block is counted again, O(blocks of the pool), and
    what is wrong, if anything, is said.
    """
    cache, pool = manager.cache, manager.pool
    stats = asdict(manager.stats)
    prefix = stats.pop("prefix")
    cached, evictable = (cache.cached_blocks, cache.evictable_blocks) if cache else (0, 0)
    answer: Json = {
        "block_size": manager.block_size,
        "blocks": {
            "total": pool.num_blocks,
            "free": pool.num_free,
            "used": pool.num_blocks - pool.num_free,
            "cached": cached,
            "evictable": evictable,
            "locked": cached - evictable,
        },
        "cached_tokens": cached * manager.block_size,
        "hit_rate": cache.hit_rate if cache else 0.0,
        "stats": prefix | {"requests": stats},
        "prefixes": _prefixes(cache, decode) if isinstance(cache, RadixCache) else None,
    }
    if tree:
        answer["tree"] = draw(cache, decode) if isinstance(cache, RadixCache) else None
    if check:
        answer["invariants"] = _verdict(manager)
    return answer


def _verdict(manager: BlockManager) -> str:
    try:
        manager.check_invariants()
    except InvariantError as error:
        return f"broken: {error}"
    return "hold"


def _prefixes(cache: RadixCache, decode: Decode | None) -> list[Json]:
    """The prefixes used last, the newest first.

    A node is used no later than its parent, so a search from the root that always goes on with the newest node meets
    them in that order, and need not look at the rest.
    """
    tree, order = cache.tree, count()
    found: list[Json] = []
    newest = _newest(tree.root)
    waiting = [(-child.last_use, next(order), 0, child) for child in tree.root.children.values()]
    heapify(waiting)
    while waiting and len(found) < PREFIXES_SHOWN:
        _, _, above, node = heappop(waiting)
        chain = _chain(node)
        blocks, node = above + sum(len(link.blocks) for link in chain), chain[-1]
        entry = {
            "tokens": blocks * tree.block_size,
            "own_tokens": (blocks - above) * tree.block_size,
            "branches": len(node.children),
            "locks": node.locks,
            "age": newest - node.last_use,
        }
        found.append(entry if decode is None else entry | {"text": _snippet(chain, decode)})
        for child in node.children.values():
            heappush(waiting, (-child.last_use, next(order), blocks, child))
    return found


def draw(cache: RadixCache, decode: Decode | None) -> str:
    """The tree as text: how many tokens each branch holds, who reads it, and how long ago it was used.

    Token numbers are left out, as they are a prompt to whoever has the tokenizer; with `decode` their text is shown.
    The branches nearest the root get their lines first. What is left out is counted.
    """
    tree = cache.tree
    newest = _newest(tree.root)
    shown = _choose(tree.root)
    lines = [f"{_count(tree.num_nodes, 'node')}, {_count(tree.num_blocks * tree.block_size, 'token')} cached"]
    stack = _below(tree.root, shown, "")
    while stack:
        node, indent, last = stack.pop()
        branch = "└─" if last else "├─"
        if isinstance(node, int):
            lines.append(f"{indent}{branch} … {node:,} more")
            continue
        chain = _chain(node)
        lines.append(f"{indent}{branch} {_describe(chain, tree.block_size, newest, decode)}")
        stack.extend(_below(chain[-1], shown, indent + ("   " if last else "│  ")))
    return "\n".join(lines)


def _newest(root: Node[int]) -> int:
    return max((child.last_use for child in root.children.values()), default=0)


def _chain(node: Node[int]) -> list[Node[int]]:
    """The node and what follows it without a fork, used and locked as it is: an answer grows block by block."""
    chain = [node]
    while len(node.children) == 1:
        (child,) = node.children.values()
        if (child.last_use, child.locks) != (node.last_use, node.locks):
            break
        chain.append(child)
        node = child
    return chain


def _choose(root: Node[int]) -> dict[Node[int], list[Node[int]]]:
    """The children to draw of each node, the newest ones, breadth first until the lines are used up."""
    shown: dict[Node[int], list[Node[int]]] = {}
    level, lines = [root], 0
    while level and lines < LINES_SHOWN:
        below: list[Node[int]] = []
        for node in level:
            room = min(BRANCHES_SHOWN, LINES_SHOWN - lines)
            shown[node] = nlargest(room, node.children.values(), key=lambda child: child.last_use)
            lines += len(shown[node])
            below.extend(_chain(child)[-1] for child in shown[node])
        level = below
    return shown


def _below(
    node: Node[int], shown: dict[Node[int], list[Node[int]]], indent: str
) -> list[tuple[Node[int] | int, str, bool]]:
    """The lines right below a node, in the order of a stack: the last one first."""
    children: list[Node[int] | int] = [*shown.get(node, ())]
    if left_out := len(node.children) - len(children):
        children.append(left_out)
    return [(child, indent, child is children[-1]) for child in reversed(children)]


def _describe(chain: Sequence[Node[int]], block_size: int, newest: int, decode: Decode | None) -> str:
    parts = [_count(sum(len(node.blocks) for node in chain) * block_size, "token")]
    if locks := chain[-1].locks:
        parts.append(_count(locks, "lock"))
    parts.append(f"age {newest - chain[-1].last_use:,}")
    text = "" if decode is None else f"  {_snippet(chain, decode)!r}"
    return ", ".join(parts) + text


def _snippet(chain: Sequence[Node[int]], decode: Decode) -> str:
    """The beginning of a chain's own text. Reads no more tokens than it shows letters."""
    tokens = array("I")
    for node in chain:
        tokens.extend(array("I", node.label[: (LETTERS_SHOWN - len(tokens)) * TOKEN_BYTES]))
        if len(tokens) == LETTERS_SHOWN:
            break
    text = decode(tokens.tolist())
    return text if len(text) <= LETTERS_SHOWN else text[: LETTERS_SHOWN - 1] + "…"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
