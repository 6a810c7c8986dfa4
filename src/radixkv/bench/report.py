"""What was measured, as tables for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from radixkv.bench.measure import Measured
from radixkv.bench.peer import CHATS, ChatReuse
from radixkv.bench.run import Result
from radixkv.bench.verdicts import uncached, verdicts
from radixkv.bench.workloads import Workload

WORDS = ("cache", "order")
NUMBERS = (
    "prompt tok/s", "x none", "output tok/s", "TTFT p50", "p99", "hit rate", "of best", "of bound", "prefill", "decode",
    "cache time", "skips",
)  # fmt: skip
PEER_NUMBERS = ("slots", "prompt tokens reused", "TTFT p50", "uncached", "cached / uncached")
WIDTH = 140


def show_workload(workload: Workload, runs: Sequence[Measured]) -> None:
    """Print a workload's table on standard output."""
    table = _table(f"{workload.name}: {workload.about}", WORDS, NUMBERS)
    for run in runs:
        table.add_row(*_cells(run, uncached(runs, run.workload)))
    _console().print(table)


def show_rest(result: Result) -> None:
    """Print what is to be said in the end on standard output: the peers and the verdicts."""
    console = _console()
    if result.peers:
        table = _table(f"{CHATS} of the multi-turn chats, held by llama.cpp and by ours", ("server",), PEER_NUMBERS)
        for peer in result.peers:
            table.add_row(*_peer_cells(peer))
        console.print(table)
    about = f"{result.model} in {result.dtype}, {result.threads} threads, seconds of the {result.clock} clock"
    for line in (about, *([result.left_out] if result.left_out else ()), *_verdict_lines(result.runs)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _console() -> Console:
    """Standard output, as wide as the tables where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def as_json(result: Result) -> dict[str, Any]:
    """Everything that was measured, and what the tables make of it."""
    return {
        "model": result.model,
        "threads": result.threads,
        "dtype": result.dtype,
        "clock": result.clock,
        "workloads": {workload.name: workload.about for workload in result.workloads},
        "runs": [_run_as_json(run, uncached(result.runs, run.workload)) for run in result.runs],
        "peers": [asdict(peer) for peer in result.peers],
        "left_out": result.left_out,
        "verdicts": [asdict(verdict) for verdict in verdicts(result.runs)],
    }


def _table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for word in words:
        table.add_column(word, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right")
    return table


def _cells(run: Measured, without: Measured | None) -> Iterator[str]:
    cached = run.setup.prefix_cache != "none"
    yield str(run.setup)
    yield run.setup.order
    yield f"{run.prompt_rate:,.0f}"
    yield f"{run.prompt_rate / without.prompt_rate:.2f}" if without else "-"
    yield f"{run.output_rate:.1f}"
    yield f"{run.first_token(0.5):.2f} s"
    yield f"{run.first_token(0.99):.2f} s"
    yield f"{run.hit_rate:.1%}" if cached else "-"
    yield f"{run.of_best:.1%}" if cached and run.best_hit_tokens else "-"
    yield f"{run.of_bound(without):.0%}" if cached and without else "-"
    yield f"{run.of_prefill(without):.0%}" if cached and without else "-"
    yield f"{run.decode_seconds / run.seconds:.0%}"
    yield f"{run.cache_share:.2%}"
    yield f"{run.worst_skips}/{run.setup.max_skips}"


def _peer_cells(peer: ChatReuse) -> Iterator[str]:
    yield peer.server
    yield peer.slots
    yield f"{peer.reused_tokens:,} of {peer.prompt_tokens:,} ({peer.reused_tokens / peer.prompt_tokens:.1%})"
    yield f"{peer.first_token_seconds:.2f} s"
    yield f"{peer.uncached_first_token_seconds:.2f} s"
    yield f"{peer.first_token_seconds / peer.uncached_first_token_seconds:.3f}"


def _verdict_lines(runs: Sequence[Measured]) -> Iterator[str]:
    for verdict in verdicts(runs):
        yield f"{'reached' if verdict.reached else 'MISSED':7}  {verdict.target}: {verdict.measured}"


def _run_as_json(run: Measured, without: Measured | None) -> dict[str, Any]:
    return asdict(run) | {
        "prompt_rate": run.prompt_rate,
        "output_rate": run.output_rate,
        "first_token_p50": run.first_token(0.5),
        "first_token_p99": run.first_token(0.99),
        "hit_rate": run.hit_rate,
        "of_best": run.of_best,
        "of_bound": run.of_bound(without) if without else None,
        "of_prefill": run.of_prefill(without) if without else None,
        "cache_share": run.cache_share,
    }
