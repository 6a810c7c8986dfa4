"""The first table: every operation on every side, interleaved in one process; ratios are peer time over ours."""

import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from benchmarks.dynamo_peer import Dynamo
from benchmarks.measure import CLOCK, Ratio, Runner, micros, now, race, table, timed_each
from benchmarks.sides import OURS, PEERS, Ours, Side, make_side
from benchmarks.workloads import BlockNames, Prompt, leaf, long_prompt, multi_turn, searched

CAPACITY_SHARE = 4
"""The serving loop's pool holds a quarter of the working set."""
CHUNK = 50
"""Calls of one side before the next side takes over."""
LONG_TOKENS, LONG_CHUNK = 131_072, 8_192
LEAVES = (1_000, 10_000, 50_000)
EVICTED_BLOCKS = 2
ALL = OURS + PEERS


def sides_at(block_size: int) -> tuple[str, ...]:
    """Who takes part: a block hash a token is nothing an engine would run, so HashCache is left out at block size 1."""
    return ALL if block_size > 1 else ("radix", *PEERS)


@dataclass(frozen=True, slots=True)
class Size:
    """How much to measure."""

    requests: int = 2_000
    long_rounds: int = 12
    evict_rounds: int = 12
    leaves: tuple[int, ...] = LEAVES

    @classmethod
    def quick(cls) -> "Size":
        """A smoke run."""
        return cls(requests=300, long_rounds=2, evict_rounds=2)


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: seconds a call in each round, by side."""

    operation: str
    block_size: int
    times: Mapping[str, Sequence[float]]

    def median(self, side: str) -> float:
        """Seconds a call."""
        return statistics.median(self.times[side])

    def ratio(self, peer: str, ours: str = "radix") -> Ratio:
        """How far ahead of a peer."""
        return Ratio.of(self.times[peer], self.times[ours])


@dataclass(slots=True)
class Results:
    """All rows, and what the sides were seen to disagree on."""

    rows: list[Row] = field(default_factory=list)
    lookups: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, operation: str, block_size: int) -> Row:
        """Find a row."""
        return next(row for row in self.rows if (row.operation, row.block_size) == (operation, block_size))


class DisagreementError(Exception):
    """Two caches gave different answers to the same call, so their times compare nothing."""


def measure(size: Size) -> Results:
    """Run everything."""
    results = Results()
    prompts = list(multi_turn(size.requests))
    for block_size in (16, 1):
        names = BlockNames(block_size)
        named = [names.name(tokens) for tokens in prompts]
        _say(f"multi-turn prompts, block size {block_size}: match, insert, lock")
        _operations(results, named, block_size)
        _say(f"multi-turn prompts, block size {block_size}: serving loop")
        _serving(results, named, len(names), block_size)
        _say(f"one prompt of {LONG_TOKENS:,} tokens, block size {block_size}")
        _long(results, block_size, size.long_rounds)
    _say("evictions")
    _evictions(results, size)
    return results


def _say(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


def _chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[i : i + CHUNK] for i in range(0, len(items), CHUNK)]


def _agree(what: str, answers: Mapping[str, Sequence[int]]) -> None:
    """Raise unless every side gave the same answers, request by request."""
    (first, expected), *others = answers.items()
    for name, given in others:
        for i, (mine, theirs) in enumerate(zip(expected, given, strict=True)):
            if mine != theirs:
                raise DisagreementError(f"{what}, call {i}: {first} says {mine}, {name} says {theirs}")


def _over_chunks(call: Callable[[Any], object], arguments: Sequence[Any], clock: Callable[[], int] = now) -> Runner:
    chunks = _chunks(arguments)
    return lambda number: timed_each(call, chunks[number % len(chunks)], clock)


def _operations(results: Results, prompts: list[Prompt], block_size: int) -> None:
    sides = {name: make_side(name, block_size) for name in sides_at(block_size)}
    rounds = len(_chunks(prompts))

    def add(operation: str, runners: Mapping[str, Runner], passes: int = 1) -> None:
        results.rows.append(Row(operation, block_size, race(runners, rounds * passes)))

    def inserting(make_arguments: Callable[[Side, Prompt], Any]) -> dict[str, Runner]:
        def runner(side: Side) -> Runner:
            chunks, insert = _chunks(prompts), side.insert

            def run(number: int) -> float:
                arguments = [make_arguments(side, prompt) for prompt in chunks[number]]
                start = now()
                for each in arguments:
                    insert(*each)
                return (now() - start) / 1e9 / len(arguments)

            return run

        return {name: runner(side) for name, side in sides.items()}

    add("insert", inserting(lambda side, prompt: side.insert_args(prompt)))
    add("insert, computed twice", inserting(lambda side, prompt: side.insert_again_args(prompt)))
    _agree("cached blocks", {name: [side.cached_blocks()] for name, side in sides.items()})

    keys = {name: [side.match_key(prompt) for prompt in prompts] for name, side in sides.items()}
    add("match, first", {name: _over_chunks(side.match, keys[name]) for name, side in sides.items()})
    add("match", {name: _over_chunks(side.match, keys[name]) for name, side in sides.items()}, passes=3)
    tokens = [prompt.tokens for prompt in prompts]
    add(
        "match with its ids", {name: _over_chunks(side.match_ids, keys[name]) for name, side in sides.items()}, passes=3
    )
    add("match, from a list", {name: _over_chunks(side.match_tokens, tokens) for name, side in sides.items()})

    answers = {name: [side.match(key) for key in keys[name]] for name, side in sides.items()}
    _agree("matched tokens", {name: [side.matched(r) for r in answers[name]] for name, side in sides.items()})
    full = [searched(len(prompt.tokens), block_size) for prompt in prompts]
    _agree("full match", {"rule": full, "radix": [sides["radix"].matched(r) for r in answers["radix"]]})
    handles = {name: [side.handle(r) for r in answers[name]] for name, side in sides.items()}
    add("lock and unlock", {name: _over_chunks(side.lock_unlock, handles[name]) for name, side in sides.items()})

    _dynamo(results, prompts, sides, block_size)


def _dynamo(results: Results, prompts: list[Prompt], sides: Mapping[str, Side], block_size: int) -> None:
    """Lookups beside Dynamo's tree, against our `match_length`: both only answer how much is cached.

    Always by the wall clock, since Dynamo answers from another thread.
    """
    peer = Dynamo(block_size)
    for prompt in prompts:
        if prompt.known < len(prompt.blocks):
            peer.store(peer.event(prompt))
    hashes = [peer.hashes(prompt) for prompt in prompts]
    tokens = [prompt.tokens for prompt in prompts]
    keys = [sides["radix"].match_key(prompt) for prompt in prompts]
    ours = {name: side.cache.match_length for name, side in sides.items() if isinstance(side, Ours)}
    _agree("lookup", {"radix": list(map(ours["radix"], keys)), "dynamo": list(map(peer.find, hashes))})
    _agree("lookup", {"radix": list(map(ours["radix"], tokens)), "dynamo": list(map(peer.find_tokens, tokens))})
    for operation, mine, theirs in (
        ("lookup, key / hashes given", keys, _over_chunks(peer.find, hashes, perf_counter_ns)),
        ("lookup, from a token list", tokens, _over_chunks(peer.find_tokens, tokens, perf_counter_ns)),
    ):
        runners = {name: _over_chunks(call, mine, perf_counter_ns) for name, call in ours.items()}
        times = race(runners | {"dynamo": theirs}, 2 * len(_chunks(prompts)))
        results.lookups.append(Row(operation, block_size, times))


def _serving(results: Results, prompts: list[Prompt], working_set: int, block_size: int) -> None:
    capacity = max(working_set // CAPACITY_SHARE, 2 * max(len(prompt.blocks) for prompt in prompts))
    tokens = [prompt.tokens for prompt in prompts]
    total = sum(map(len, tokens))

    def loop(
        operation: str,
        serve: Callable[[Side], Callable[[Any], int]],
        key: Callable[[Side, Prompt], Any],
        *,
        pool: bool = True,
    ) -> None:
        names = sides_at(block_size)
        sides = {name: make_side(name, block_size, capacity, pool=pool) for name in names}
        hits: dict[str, list[int]] = {name: [] for name in names}
        chunks = _chunks(prompts)

        def runner(name: str) -> Runner:
            side = sides[name]
            call, found = serve(side), hits[name].append

            def run(number: int) -> float:
                keys = [key(side, prompt) for prompt in chunks[number]]
                start = now()
                for each in keys:
                    found(call(each))
                return (now() - start) / 1e9 / len(keys)

            return run

        times = race({name: runner(name) for name in names}, len(chunks))
        warm = _filled_after(chunks, capacity)
        results.rows.append(Row(operation, block_size, {name: each[warm:] for name, each in times.items()}))
        before = (warm - 1) * CHUNK
        _agree("matched before any eviction", {name: found[:before] for name, found in hits.items()})
        rates = ", ".join(f"{name} {sum(found) / total:.4f}" for name, found in hits.items())
        results.notes.append(f"hit rate of the {operation}, block size {block_size}: {rates}")

    loop("serving loop", lambda side: side.serve, lambda side, prompt: side.serve_key(prompt))
    loop("serving loop, from a list", lambda side: side.serve_tokens, lambda _, prompt: prompt.tokens)
    loop(
        "serving loop, cache calls alone",
        lambda side: side.serve_bare,
        lambda side, prompt: side.serve_bare_key(prompt),
        pool=False,
    )


def _filled_after(chunks: list[Sequence[Prompt]], capacity: int) -> int:
    """The first round in which every request runs against a full pool."""
    new = 0
    for number, chunk in enumerate(chunks):
        new += sum(len(prompt.blocks) - prompt.known for prompt in chunk)
        if new > capacity:
            return min(number + 1, len(chunks) - 1)
    return 0


def _long(results: Results, block_size: int, rounds: int) -> None:
    tokens = long_prompt(LONG_TOKENS)
    names = BlockNames(block_size)
    whole = names.name(tokens)
    steps = [
        Prompt(tokens[:end], whole.blocks[: end // block_size], (end - LONG_CHUNK) // block_size)
        for end in range(LONG_CHUNK, LONG_TOKENS + 1, LONG_CHUNK)
    ]
    first = Prompt(tokens, whole.blocks, 0)
    matched: dict[str, list[int]] = {}

    def inserting(name: str, prompts: list[Prompt]) -> Runner:
        arguments = [make_side(name, block_size).insert_args(prompt) for prompt in prompts]

        def run(_: int) -> float:
            insert = make_side(name, block_size).insert
            start = now()
            for each in arguments:
                insert(*each)
            return (now() - start) / 1e9

        return run

    def matching(name: str, *, ids: bool) -> Runner:
        side = make_side(name, block_size)
        for step in steps:
            side.insert(*side.insert_args(step))
        key = side.match_key(first)
        matched[name] = [side.matched(side.match(key))]
        return lambda _: timed_each(side.match_ids if ids else side.match, [key] * 5)

    operations: list[tuple[str, Callable[[str], Runner]]] = [
        ("131,072 tokens: insert whole", lambda name: inserting(name, [first])),
        ("131,072 tokens: insert by 8,192", lambda name: inserting(name, steps)),
        ("131,072 tokens: full match", lambda name: matching(name, ids=False)),
        ("131,072 tokens: full match with its ids", lambda name: matching(name, ids=True)),
    ]
    for operation, make in operations:
        runners = {name: make(name) for name in sides_at(block_size)}
        results.rows.append(Row(operation, block_size, race(runners, rounds)))
    _agree("long match", {"rule": [searched(LONG_TOKENS, block_size)], **matched})


def evict_operation(leaves: int) -> str:
    """The name of an eviction row."""
    return f"evict {EVICTED_BLOCKS} blocks of {leaves:,} leaves"


def _evictions(results: Results, size: Size) -> None:
    """Evict two blocks, then insert a new leaf (not timed), so that the number of leaves stays."""
    block_size, repeats = 16, 5

    def runner(name: str, leaves: int) -> Runner:
        side = make_side(name, block_size)

        def add(index: int) -> None:
            side.insert(*side.insert_args(leaf(index, block_size)))

        for index in range(leaves):
            add(index)
        following = leaves

        def run(_: int) -> float:
            nonlocal following
            elapsed = 0
            for _ in range(repeats):
                start = now()
                side.evict(EVICTED_BLOCKS)
                elapsed += now() - start
                add(following)
                following += 1
            if side.cached_blocks() != 2 * leaves:
                raise DisagreementError(f"{name} evicted other than {EVICTED_BLOCKS} blocks at a time")
            return elapsed / 1e9 / repeats

        return run

    runners = {(name, leaves): runner(name, leaves) for leaves in size.leaves for name in ALL}
    times = race({f"{name}/{leaves}": run for (name, leaves), run in runners.items()}, size.evict_rounds)
    for leaves in size.leaves:
        by_side = {name: times[f"{name}/{leaves}"] for name in ALL}
        results.rows.append(Row(evict_operation(leaves), block_size, by_side))
    _after_matches(results, size)


def _after_matches(results: Results, size: Size) -> None:
    """The first eviction after every leaf was matched once: what lazily kept order may have saved up for it."""
    block_size, leaves = 16, size.leaves[-1]
    rounds = size.evict_rounds
    names = (*OURS, "sglang-rust")

    def runner(name: str) -> Runner:
        side = make_side(name, block_size)
        keys = []
        for index in range(leaves):
            prompt = leaf(index, block_size)
            side.insert(*side.insert_args(prompt))
            # One token more, so that the whole leaf may be matched.
            keys.append(side.match_key(Prompt([*prompt.tokens, 7], prompt.blocks, 0)))

        def run(number: int) -> float:
            order = random.Random(number).sample(range(leaves), leaves)
            for index in order:
                side.match(keys[index])
            start = now()
            side.evict(EVICTED_BLOCKS)
            elapsed = now() - start
            side.insert(*side.insert_args(leaf(order[0], block_size)))
            if side.cached_blocks() != 2 * leaves:
                raise DisagreementError(f"{name} did not evict the leaf that was matched first")
            return elapsed / 1e9

        return run

    times = race({name: runner(name) for name in names}, rounds)
    results.rows.append(Row(f"first evict after {leaves:,} matches", block_size, times))


def render(results: Results) -> str:
    """All tables as text."""

    def start(row: Row, names: Sequence[str]) -> list[str]:
        medians = [micros(row.median(name)) if name in row.times else "" for name in names]
        return [row.operation, str(row.block_size), *medians]

    def ratio(row: Row, peer: str, ours: str = "radix") -> str:
        return str(row.ratio(peer, ours)) if {peer, ours} <= set(row.times) else ""

    head = ["operation", "B", "radix µs", "hash µs", "rust µs", "python µs"]
    head += ["rust / radix", "python / radix", "rust / hash"]
    rows = [
        [*start(row, ALL), ratio(row, "sglang-rust"), ratio(row, "sglang-python"), ratio(row, "sglang-rust", "hash")]
        for row in results.rows
    ]
    lookups = [
        [*start(row, (*OURS, "dynamo")), ratio(row, "dynamo"), ratio(row, "dynamo", "hash")] for row in results.lookups
    ]
    title = f"Ratios: peer time / ours ({CLOCK} clock), median [min..max] of the rounds; above 1 is ahead"
    lookup_head = ["lookup", "B", "radix µs", "hash µs", "dynamo µs", "dynamo / radix", "dynamo / hash"]
    return "\n\n".join(
        [
            table(title, head, rows),
            table("Lookups: our match_length beside Dynamo's RadixTree", lookup_head, lookups),
            "\n".join(f"- {note}" for note in results.notes),
        ]
    )
