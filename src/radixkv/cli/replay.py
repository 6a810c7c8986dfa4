"""`radixkv replay`: the hit rate that a trace gets at chosen settings."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from radixkv.cli import options
from radixkv.cli.say import fail, needs, one_of
from radixkv.errors import RadixKVError
from radixkv.eviction import POLICIES
from radixkv.scheduler import ORDERS

if TYPE_CHECKING:
    from radixkv.lab import ModelCost

_SETTINGS: Final = "Settings, several with commas between them"
_COST: Final = "What a prefill costs"
_CACHES: Final = ("hash", "radix")


def replay(  # noqa: PLR0913, PLR0917  # one parameter an option
    trace: options.Paths,
    trace_format: options.Format = None,
    skip_bad: options.SkipBad = False,
    blocks: options.Blocks = None,
    share: options.Share = None,
    memory: options.Memory = None,
    model: options.Model = None,
    context: options.Context = None,
    cache: Annotated[str, typer.Option(help=", ".join(_CACHES), rich_help_panel=_SETTINGS)] = "radix",
    eviction: Annotated[str, typer.Option(help=", ".join(sorted(POLICIES)), rich_help_panel=_SETTINGS)] = "lru",
    order: Annotated[str, typer.Option(help=", ".join(sorted(ORDERS)), rich_help_panel=_SETTINGS)] = "fcfs",
    block_size: Annotated[
        str | None,
        typer.Option(
            metavar="N,N…",
            help="Tokens a block. [default: what an id of the trace stands for, or 16]",
            rich_help_panel=_SETTINGS,
        ),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Requests that wait at a time for the order to choose from.")] = 64,
    peak: Annotated[
        float, typer.Option(min=0.001, metavar="TFLOPS", help="Of the GPU.", rich_help_panel=_COST)
    ] = 989.0,
    utilisation: Annotated[
        float, typer.Option(min=0.001, max=1, help="Share of the peak that a prefill reaches.", rich_help_panel=_COST)
    ] = 0.5,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. [default: one a core]")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Work on that Ray cluster; `local` starts one here.")
    ] = None,
    json: options.Json = None,
) -> None:
    """Replay a trace through the caches, at every combination of the settings."""
    with needs("lab"):
        from radixkv.cli import tracing  # noqa: PLC0415  # takes a while, and needs more than the command line
        from radixkv.lab import (  # noqa: PLC0415
            ReplayConfig,
            Roofline,
            TraceFiles,
            default_block_size,
            lru_curve,
            replay_grid,
            replay_row,
        )
    several = tracing.several
    caches = several(cache, one_of(_CACHES), "--cache")
    evictions = several(eviction, one_of(POLICIES), "--eviction")
    orders = several(order, one_of(ORDERS), "--order")
    block_sizes = several(block_size, tracing.count, "--block-size")
    found = tracing.find(model)
    sizes = tracing.sizes(blocks, share, memory, found, context)
    try:
        with tracing.files(trace) as paths:
            source = TraceFiles(paths, trace_format, skip_bad)
            configs, ceilings = [], []
            for one in block_sizes or (default_block_size(source()),):
                with tracing.reading(paths, "counting blocks") as progress:
                    requests = source(progress)
                    curve = lru_curve(requests, one)
                ceilings.append({"block_size": one, "unique_blocks": curve.unique_blocks, "ceiling": curve.ceiling})
                capacities = sizes.in_blocks(one, curve.unique_blocks)
                configs += [
                    ReplayConfig(capacity, one, *names, window=window)
                    for *names, capacity in product(caches, evictions, orders, capacities)
                ]
            tracing.tell_what_was_passed_over(requests)
            with tracing.working(f"replaying {len(configs)} settings"):
                results = replay_grid(source, configs, workers=workers, ray=ray)
    except RadixKVError as error:
        raise fail(str(error)) from None
    roofline = Roofline(found, peak * 1e12, utilisation) if found else None
    rows = [replay_row(result, roofline) for result in results]
    if json != tracing.STDIN:
        _print(rows, ceilings, found)
    if json:
        tracing.write_json({"rows": rows, "ceilings": ceilings}, json)


def _print(rows: list[dict[str, Any]], ceilings: list[dict[str, Any]], model: ModelCost | None) -> None:
    from radixkv.cli import tracing  # noqa: PLC0415  # as above

    head = ["cache", "eviction", "order", "block size", "blocks", *(["memory"] if model else []), "hit rate"]
    head += ["tokens saved", *(["prefill saved", "GPU-hours saved"] if model else []), "evicted"]
    head += ["lifetime", "idle before eviction", "reuse gap"]
    table = []
    for row in rows:
        blocks, block_size = row["blocks"], row["block_size"]
        cells = [row["cache"], row["eviction"], row["order"], f"{block_size}", f"{blocks:,}"]
        if model:
            cells.append(tracing.bytes_text(blocks * block_size * model.token_bytes()))
        cells += [f"{row['hit_rate']:.4f}", f"{row['hit_tokens']:,}"]
        if model:
            cells += [f"{row['prefill_seconds_saved']:,.0f} s", f"{row['gpu_hours_saved']:,.2f}"]
        cells.append(f"{row['evicted_blocks']:,}")
        cells += [_median(row[age]) for age in ("lifetime", "idle_before_eviction", "reuse_gap")]
        table.append(cells)
    tracing.print_table(head, table, left=3)
    for found in ceilings:
        typer.echo(
            f"At {found['block_size']} tokens a block: {found['unique_blocks']:,} distinct blocks, "
            f"and a hit rate of {found['ceiling']:.4f} if nothing were ever evicted."
        )
    typer.echo("Lifetime, idle time and reuse gap are medians, in requests and in the trace's own time.")


def _median(age: dict[str, dict[str, float] | None]) -> str:
    requests, seconds = age["requests"], age["seconds"]
    if requests is None:
        return "-"
    return f"{requests['p50']:,}" if seconds is None else f"{requests['p50']:,} / {seconds['p50']:,.0f} s"
