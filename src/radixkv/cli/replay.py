"""`radixkv replay`: the hit rate that a trace gets at chosen settings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Annotated, Any, Final

import typer

from radixkv.cli import options
from radixkv.cli.say import fail, needs, one_of
from radixkv.errors import RadixKVError
from radixkv.eviction import POLICIES
from radixkv.scheduler import ORDERS

_SETTINGS: Final = "Settings, several with commas between them"
_COST: Final = "What a prefill costs"
_CACHES: Final = ("hash", "radix")


def replay(  # noqa: PLR0913, PLR0917  # one parameter an option
    trace: options.Paths,
    trace_format: options.Format = None,
    skip_bad: options.SkipBad = False,
    tokenizer: options.TokenizerName = None,
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
            help="Tokens a block.",
            show_default="what an id of the trace stands for, or 16",
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
    workers: options.Workers = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Work on that Ray cluster; `local` starts one here.")
    ] = None,
    output: options.Output = None,
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
        with needs("lab"), tracing.files(trace) as paths:
            source = TraceFiles(paths, trace_format, skip_bad, tokenizer)
            configs: list[ReplayConfig] = []
            ceilings: list[dict[str, Any]] = []
            total = 0
            for one in block_sizes or (default_block_size(source()),):
                with tracing.reading(paths, "counting blocks") as progress:
                    requests = source(progress)
                    curve = lru_curve(requests, one)
                if not ceilings:
                    tracing.tell_what_was_passed_over(requests)
                ceilings.append({"block_size": one, "unique_blocks": curve.unique_blocks, "ceiling": curve.ceiling})
                capacities = sizes.in_blocks(one, curve.unique_blocks)
                settings = list(product(caches, evictions, orders, capacities))
                configs += [
                    ReplayConfig(capacity, one, cache=name, eviction=policy, order=queue, window=window)
                    for name, policy, queue, capacity in settings
                ]
                total += curve.requests * len(settings)
            with tracing.replaying(len(configs), total) as served:
                results = replay_grid(source, configs, workers=workers, ray=ray, progress=served)
    except RadixKVError as error:
        raise fail(str(error)) from None
    roofline = Roofline(found, peak * 1e12, utilisation) if found else None
    rows = [replay_row(result, roofline) for result in results]
    if json != tracing.STDIN:
        _print(rows, ceilings, found.token_bytes(context) if found else None)
    if json:
        tracing.write_json({"rows": rows, "ceilings": ceilings}, json)
    if output:
        with needs("lab"):
            from radixkv.lab.plots import replay_picture  # noqa: PLC0415  # matplotlib takes longest of all
        with tracing.writing(output):
            replay_picture(results, found.token_bytes(context) if found else None).save(output)


def _print(rows: list[dict[str, Any]], ceilings: list[dict[str, Any]], token_bytes: float | None) -> None:
    """One table; a setting that is the same in all rows stands above it."""
    from radixkv.cli import tracing  # noqa: PLC0415  # as above
    from radixkv.lab import bytes_text  # noqa: PLC0415

    columns: dict[str, Callable[[dict[str, Any]], str]] = {}
    fixed = []
    for name, key in (("cache", "cache"), ("eviction", "eviction"), ("order", "order"), ("block size", "block_size")):
        values = {row[key] for row in rows}
        if len(values) > 1:
            columns[name] = lambda row, key=key: str(row[key])  # type: ignore[misc]  # binds the key
        else:
            fixed.append(f"{name} {values.pop()}")
    settings = len(columns)
    columns["blocks"] = lambda row: f"{row['blocks']:,}"
    if token_bytes is not None:
        columns["memory"] = lambda row: bytes_text(row["blocks"] * row["block_size"] * token_bytes)
    columns["hit rate"] = lambda row: f"{row['hit_rate']:.4f}"
    columns["tokens saved"] = lambda row: f"{row['hit_tokens']:,}"
    if token_bytes is not None:
        columns["prefill saved"] = lambda row: f"{row['prefill_seconds_saved']:,.0f} s"
        columns["GPU-hours"] = lambda row: f"{row['gpu_hours_saved']:,.2f}"
    columns["evicted"] = lambda row: f"{row['evicted_blocks']:,}"
    columns["lifetime"] = lambda row: _median(row["lifetime"])
    columns["idle"] = lambda row: _median(row["idle_before_eviction"])
    columns["reuse gap"] = lambda row: _median(row["reuse_gap"])
    typer.echo(", ".join(fixed) + "\n" if fixed else "", nl=bool(fixed))
    tracing.print_table(list(columns), [[cell(row) for cell in columns.values()] for row in rows], left=settings)
    typer.echo()
    for found in ceilings:
        typer.echo(
            f"At {found['block_size']} tokens a block: {found['unique_blocks']:,} distinct blocks, "
            f"and a hit rate of {found['ceiling']:.4f} if nothing were ever evicted."
        )
    typer.echo(
        "Lifetime and idle time of evicted blocks, reuse gap of hit ones: medians, in requests / by the trace's clock."
    )


def _median(age: dict[str, dict[str, float] | None]) -> str:
    requests, seconds = age["requests"], age["seconds"]
    if requests is None:
        return "-"
    return f"{requests['p50']:,}" if seconds is None else f"{requests['p50']:,} / {seconds['p50']:,.0f} s"
