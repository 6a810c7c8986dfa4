"""Make docs/lessons.md's numbers and pictures: `make figures`. Every one of them is what the real code does.

The page's words are written by hand; what stands between `<!-- made: NAME -->` and `<!-- made. -->` comes from here.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from radixkv import BlockManager, RadixCache, TokenKey
from radixkv.lab import Optimum, lru_curve, style
from radixkv.lab.style import Picture, picture
from radixkv.scheduler import WaitingQueue
from radixkv.traces import Request
from radixkv.tree import Node, RadixTree

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "lessons.md"
FIGURES: Final = ROOT / "docs" / "figures"

# --- 1. Sharing in layers, and how a split comes about ---------------------------------------------------------------

SPEECH: Final = (
    "You are a helpful agent . Tools: search code . Book a hotel",
    "You are a helpful agent . Tools: search code . Fix this test",
    "You are a helpful agent . Tools: calendar . Plan my week",
)
"""Three prompts, a word a token: one system text, two sets of tools, three questions."""


@dataclass(frozen=True, slots=True)
class Step:
    """A prompt of `SPEECH`, served, and the tree after it."""

    tokens: int
    matched: int
    nodes: int
    cached: int
    tree: RadixTree[int]


def layers() -> list[Step]:
    """The prompts one after the other, by the word; each step's tree is a cache of its own."""
    return [_serve(SPEECH[:count]) for count in range(1, len(SPEECH) + 1)]


def _serve(prompts: Sequence[str]) -> Step:
    cache, words = RadixCache(block_size=1), _vocabulary(SPEECH)
    for prompt in prompts[:-1]:
        _insert(cache, words, prompt)
    matched = _insert(cache, words, prompts[-1])
    return Step(len(prompts[-1].split()), matched, cache.tree.num_nodes, cache.cached_tokens, cache.tree)


def _vocabulary(prompts: Sequence[str]) -> list[str]:
    """The words, each standing at the place that is its token."""
    return list(dict.fromkeys(" ".join(prompts).split()))


def _insert(cache: RadixCache, words: list[str], prompt: str) -> int:
    """Serve a prompt, and return how many of its tokens were cached."""
    tokens = [words.index(word) for word in prompt.split()]
    matched = cache.match_prefix(tokens).matched_tokens
    cache.insert(tokens, range(len(tokens)))
    return matched


def _said(words: list[str], node: Node[int]) -> list[str]:
    return [words[token] for token in array("I", node.label)]


def _draw_layers(figure: Figure) -> None:
    words = _vocabulary(SPEECH)
    panels = figure.subplots(3, 1, height_ratios=(1, 2, 3))
    for number, (axes, step) in enumerate(zip(panels, layers(), strict=True), start=1):
        style.bare(axes)
        said = "matches nothing" if not step.matched else f"matches {step.matched} of {step.tokens} tokens"
        axes.set_title(
            f"Prompt {number} {said}: {step.nodes} node{'s' if step.nodes > 1 else ''}, {step.cached} tokens cached"
        )
        _draw_tree(axes, step.tree, partial(_said, words))


def _draw_tree(
    axes: Any,
    tree: RadixTree[int],
    words: Callable[[Node[int]], Sequence[str]],
    colour: Callable[[Node[int], int], str] = lambda _, depth: style.SERIES[depth],
) -> None:
    """Nodes as bars from left to right, a cell a token, as high as the leaves below them."""
    longest = 0

    def draw(node: Node[int], start: int, top: int, depth: int) -> int:
        nonlocal longest
        leaves = 0
        length = len(node.label) // 4
        longest = max(longest, start + length)
        for child in node.children.values():
            leaves += draw(child, start + length, top + leaves, depth + 1)
        height = max(leaves, 1)
        fill = colour(node, depth)
        axes.add_patch(
            Rectangle((start + 0.03, top + 0.07), length - 0.06, height - 0.14, facecolor=fill, alpha=0.24, linewidth=0)
        )
        axes.add_patch(
            Rectangle(
                (start + 0.03, top + 0.07), length - 0.06, height - 0.14, fill=False, edgecolor=fill, linewidth=1.4
            )
        )
        shown = words(node)
        for place, word in enumerate(shown):
            middle = start + (place + 0.5) * length / len(shown)
            axes.text(middle, top + height / 2, word, ha="center", va="center", fontsize=9)
        return height

    top = 0
    for child in tree.root.children.values():
        top += draw(child, 0, top, 0)
    axes.set_xlim(0, longest)
    axes.set_ylim(top, 0)


def _tell_layers() -> str:
    rows = ["| prompt | tokens | matched | computed | nodes after it | tokens cached |", "|---|---|---|---|---|---|"]
    rows += [
        f"| {number} | {step.tokens} | {step.matched} | {step.tokens - step.matched} | {step.nodes} | {step.cached} |"
        for number, step in enumerate(layers(), start=1)
    ]
    return "\n".join(rows)


# --- 2. What is reused of a shared prefix, by block size -------------------------------------------------------------

PROMPT: Final = 64
"""Tokens of each of two prompts that share a beginning."""


def reuse(block_size: int, shared: int) -> int:
    """Tokens that a prompt of `PROMPT` tokens finds cached after another with which it shares the first `shared`."""
    cache = RadixCache(block_size)
    first = list(range(PROMPT))
    cache.insert(first, range(PROMPT // block_size))
    return cache.match_prefix(first[:shared] + list(range(1000, 1000 + PROMPT - shared))).matched_tokens


def _draw_reuse(figure: Figure) -> None:
    axes = figure.subplots()
    shared = range(PROMPT + 1)
    for block_size, colour in ((1, style.BLUE), (16, style.ORANGE)):
        axes.plot(
            shared, [reuse(block_size, count) for count in shared], color=colour, label=f"blocks of {block_size}",
            drawstyle="steps-post", zorder=3 - block_size / 16,
        )  # fmt: skip
    axes.set(xlim=(0, PROMPT + 0.6), ylim=(0, PROMPT), xticks=range(0, PROMPT + 1, 16), yticks=range(0, PROMPT + 1, 16))
    axes.set_xlabel("tokens that the two prompts share")
    axes.set_ylabel("tokens reused")
    axes.legend(loc="upper left")
    axes.annotate(
        "the same prompt again:\nits last token is computed",
        (PROMPT, PROMPT - 1), (PROMPT - 23, PROMPT - 8), va="center", ha="center", fontsize=9, color=style.MUTED,
        arrowprops={"arrowstyle": "-", "color": style.MUTED, "shrinkB": 4},
    )  # fmt: skip


def _tell_reuse() -> str:
    shared = (15, 16, 40, 63, 64)
    rows = [f"| shared of {PROMPT} tokens | {' | '.join(map(str, shared))} |", "|---" * (len(shared) + 1) + "|"]
    rows += [
        f"| reused, blocks of {size} | {' | '.join(str(reuse(size, count)) for count in shared)} |" for size in (16, 1)
    ]
    return "\n".join(rows)


# --- 3. The order of eviction on a tree, trunk last ------------------------------------------------------------------

VISITS: Final = (
    "system tools question1",
    "system tools question2",
    "system rules question3",
    "system tools question1",
)
"""Prompts in the order they come, a word a token."""


class _Evicted:
    """Hears which nodes go, in order."""

    def __init__(self) -> None:
        self.nodes: list[Node[int]] = []

    def matched(self, blocks: object) -> None:
        """Of no interest."""

    def inserted(self, blocks: object, new_blocks: int, name: object) -> None:
        """Of no interest."""

    def evicted(self, nodes: Sequence[Node[int]], blocks: object) -> None:
        """Note them."""
        self.nodes.extend(nodes)

    def cleared(self) -> None:
        """Never happens."""


def evictions() -> list[str]:
    """The words of `VISITS` in the order that LRU evicts their nodes, one `evict(1)` at a time."""
    words, cache = _visited()
    heard = _Evicted()
    cache.observe(heard)
    while cache.cached_blocks:
        cache.evict(1)
    return [" ".join(_said(words, node)) for node in heard.nodes]


def _visited() -> tuple[list[str], RadixCache]:
    words, cache = _vocabulary(VISITS), RadixCache(block_size=1)
    for prompt in VISITS:
        _insert(cache, words, prompt)
    return words, cache


def _draw_evictions(figure: Figure) -> None:
    order = evictions()
    words, cache = _visited()
    axes = figure.subplots()
    style.bare(axes)

    def name(node: Node[int]) -> str:
        return " ".join(_said(words, node))

    def caption(node: Node[int]) -> list[str]:
        last = max(visit for visit, prompt in enumerate(VISITS, 1) if set(name(node).split()) <= set(prompt.split()))
        return [f"{name(node)}\nlast used by prompt {last}\nevicted {_ordinal(order.index(name(node)) + 1)}"]

    shades = (style.RED, style.ORANGE, style.GREEN, style.SKY, style.BLUE)
    _draw_tree(axes, cache.tree, caption, lambda node, _: shades[order.index(name(node)) % len(shades)])


def _ordinal(number: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def _tell_evictions() -> str:
    return " → ".join(f"`{name}`" for name in evictions())


# --- 4 to 6. Orders, cycles, and the cliff ---------------------------------------------------------------------------

BLOCK: Final = 4
"""Tokens a block, in the lessons that follow."""


def prompt(name: str, blocks: int = 1) -> list[int]:
    """`blocks` blocks that belong to the prefix `name`, and a token of its own: the question."""
    start = 1000 * (1 + ord(name) - ord("A"))
    return [*range(start, start + BLOCK * blocks), 0]


def matched(names: str, room: int, *, blocks: int = 1, policy: str = "lru") -> list[int]:
    """Tokens that each request finds cached, one after the other.

    The memory has `room` blocks for prefixes and one more, for the question of the request that runs.
    """
    manager = BlockManager(room + 1, BLOCK, eviction=policy)
    found = []
    for name in names:
        table = manager.admit(prompt(name, blocks))
        manager.commit(table, table.num_tokens)
        found.append(table.matched_tokens)
        manager.finish(table)
    return found


def queued(names: str, order: str) -> tuple[str, list[int]]:
    """All requests wait at once and run one at a time, in room for one prefix: who runs when, and what it finds."""
    manager = BlockManager(2, BLOCK)
    queue = WaitingQueue[int](manager, order=order)
    for arrival, name in enumerate(names):
        queue.add(arrival, prompt(name))
    ran, found = "", []
    while admitted := queue.admit():
        arrival, table = admitted
        ran += names[arrival]
        manager.commit(table, table.num_tokens)
        found.append(table.matched_tokens)
        manager.finish(table)
    return ran, found


NINE: Final = "ABCABCABC"
CYCLE: Final = "ABCDE"
GROUPED: Final = "AABBCCDDEE"
ROUNDS: Final = 200
PREFIX_BLOCKS: Final = 8

POLICIES_SHOWN: Final = ("lru", "density")


@cache
def cliff(policy: str) -> Mapping[int, float]:
    """Share of the prefixes' tokens found cached, by blocks of room: five prefixes in turn, `ROUNDS` times."""
    whole = len(CYCLE) * PREFIX_BLOCKS
    asked = len(CYCLE) * ROUNDS * PREFIX_BLOCKS * BLOCK
    return {
        room: sum(matched(CYCLE * ROUNDS, room, blocks=PREFIX_BLOCKS, policy=policy)) / asked
        for room in range(PREFIX_BLOCKS, whole + PREFIX_BLOCKS + 1)
    }


@cache
def best_possible() -> Mapping[int, float]:
    """The same share for a policy that knows the future."""
    requests = [Request(TokenKey(prompt(name, PREFIX_BLOCKS)), PREFIX_BLOCKS * BLOCK + 1) for name in CYCLE * ROUNDS]
    optimum = Optimum(BLOCK)
    lru_curve(requests, BLOCK, observe=optimum.add)
    return {room: optimum.hit_tokens(room) / (len(requests) * PREFIX_BLOCKS * BLOCK) for room in cliff("lru")}


def _timeline(axes: Any, rows: Sequence[tuple[str, str, list[int]]]) -> None:
    """Requests as squares in the order they run, filled where the prefix was cached."""
    style.bare(axes)
    for row, (title, names, found) in enumerate(rows):
        top = row * 1.9
        axes.text(-0.35, top, title, ha="right", va="center", fontsize=9.5)
        for place, (name, hit) in enumerate(zip(names, found, strict=True)):
            colour = style.BLUE if hit else style.LINE
            axes.add_patch(Rectangle((place, top - 0.45), 0.9, 0.9, facecolor=colour, linewidth=0))
            axes.text(
                place + 0.45, top, name, ha="center", va="center", fontsize=11, fontweight="bold",
                color="#ffffff" if hit else style.INK,
            )  # fmt: skip
        axes.text(
            len(names) + 0.2,
            top,
            f"{sum(map(bool, found))} of {len(found)} hit",
            va="center",
            fontsize=9.5,
            fontweight="bold",
        )
    longest = max(len(names) for _, names, _ in rows)
    axes.set_xlim(-4.2, longest + 2.4)
    axes.set_ylim(1.9 * len(rows) - 1.1, -0.8)
    axes.set_aspect("equal")


def _draw_nine(figure: Figure) -> None:
    _timeline(
        figure.subplots(),
        [("as they came", *queued(NINE, "fcfs")), ("longest prefix first", *queued(NINE, "lpm"))],
    )


def _draw_cycle(figure: Figure) -> None:
    _timeline(
        figure.subplots(),
        [("in turn", CYCLE * 2, matched(CYCLE * 2, 4)), ("grouped", GROUPED, matched(GROUPED, 4))],
    )


def _draw_cliff(figure: Figure) -> None:
    axes = figure.subplots()
    for policy, colour in zip(POLICIES_SHOWN, style.SERIES, strict=False):
        shares = cliff(policy)
        axes.plot(list(shares), list(shares.values()), drawstyle="steps-post", color=colour, label=policy)
    shares = best_possible()
    axes.plot(
        list(shares), list(shares.values()), color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1.4, label="optimum"
    )
    whole = len(CYCLE) * PREFIX_BLOCKS
    axes.set(xlim=(PREFIX_BLOCKS, whole + PREFIX_BLOCKS), ylim=(-0.02, 1.05), xticks=range(8, 49, 8))
    axes.set_xlabel("room, in blocks")
    axes.set_ylabel("prefix tokens found cached")
    style.percent_axis(axes.yaxis)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.98))


def _tell_orders(names: str, rows: Sequence[tuple[str, str, list[int]]]) -> str:
    lines = [f"| order | {len(names)} requests | hits |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {title} | {' '.join(ran)} | {sum(map(bool, found))} |" for title, ran, found in rows)]
    )


def _tell_cliff() -> str:
    rooms = (8, 24, 32, 39, 40, 48)
    lines = [f"| room, in blocks | {' | '.join(map(str, rooms))} |", "|---" * (len(rooms) + 1) + "|"]
    for policy in POLICIES_SHOWN:
        shares = cliff(policy)
        lines.append(f"| cached, `{policy}` | {' | '.join(f'{shares[room]:.1%}' for room in rooms)} |")
    lines.append(f"| the best possible | {' | '.join(f'{best_possible()[room]:.1%}' for room in rooms)} |")
    return "\n".join(lines)


# --- The page --------------------------------------------------------------------------------------------------------

SECTIONS: Final[Mapping[str, Callable[[], str]]] = {
    "layers": _tell_layers,
    "reuse": _tell_reuse,
    "evictions": _tell_evictions,
    "nine": lambda: _tell_orders(
        NINE, [("first come, first served", *queued(NINE, "fcfs")), ("longest prefix first", *queued(NINE, "lpm"))]
    ),
    "cycle": lambda: _tell_orders(
        GROUPED, [("in turn", CYCLE * 2, matched(CYCLE * 2, 4)), ("grouped", GROUPED, matched(GROUPED, 4))]
    ),
    "cliff": _tell_cliff,
}
"""What is written into the page, by the name of its marker."""

PICTURES: Final[Mapping[str, Callable[[], Picture]]] = {
    "layers": lambda: picture(_draw_layers, alt="A tree that two splits cut into layers", width=9, height=4.6),
    "reuse": lambda: picture(_draw_reuse, alt="Tokens reused against tokens shared", width=6.4, height=3.8),
    "evictions": lambda: picture(_draw_evictions, alt="A tree with the order its nodes go in", width=8, height=3.2),
    "nine": lambda: picture(_draw_nine, alt="Nine requests in two orders, hits filled", width=8, height=2.1),
    "cycle": lambda: picture(_draw_cycle, alt="Ten requests in two orders, hits filled", width=8, height=2.1),
    "cliff": lambda: picture(
        _draw_cliff, alt="Share of prefix tokens found cached against room", width=7.2, height=3.6
    ),
}
"""What is drawn into docs/figures, by the name of the file."""


def rewritten(page: str) -> str:
    """The page with every marked section made anew.

    Raises:
        KeyError: a marker names no section.
    """
    marked = re.compile(r"(?P<open><!-- made: (?P<name>[\w-]+) -->\n).*?(?P<close>\n<!-- made\. -->)", re.DOTALL)
    return marked.sub(lambda found: found["open"] + SECTIONS[found["name"]]() + found["close"], page)


def main() -> None:
    """Write the pictures and the page."""
    FIGURES.mkdir(exist_ok=True)
    for name, make in PICTURES.items():
        make().save(FIGURES / f"lesson-{name}.svg")
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
