"""`radixkv curve`: the LRU hit rate of a trace at every capacity, and the most that any policy could reach."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

import typer

from radixkv.cli import options
from radixkv.cli.say import fail, needs, one_of
from radixkv.errors import RadixKVError
from radixkv.eviction import POLICIES


def curve(  # noqa: PLR0913, PLR0917  # one parameter an option
    trace: options.Paths,
    trace_format: options.Format = None,
    skip_bad: options.SkipBad = False,
    tokenizer: options.TokenizerName = None,
    blocks: options.Blocks = None,
    share: options.Share = None,
    memory: options.Memory = None,
    model: options.Model = None,
    context: options.Context = None,
    block_size: options.BlockSize = None,
    optimum: Annotated[
        bool, typer.Option("--optimum", help="Also the best that any policy could do, which knows the future.")
    ] = False,
    eviction: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME…", help=f"Replay these beside it: {', '.join(sorted(POLICIES))}."),
    ] = None,
    sample: Annotated[
        str | None, typer.Option(metavar="10%", help="Estimate from a share of the blocks, in that share of memory.")
    ] = None,
    present: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The size there is now, to mark: blocks, or memory with --model.")
    ] = None,
    output: options.Output = None,
    json: options.Json = None,
) -> None:
    """Compute the LRU hit rate of a trace at every capacity, in one pass."""
    with needs("lab"):
        from radixkv.cli import tracing  # noqa: PLC0415  # takes a while, and needs more than the command line
        from radixkv.lab import (  # noqa: PLC0415
            Optimum,
            ReplayConfig,
            TraceFiles,
            curve_report,
            default_block_size,
            lru_curve,
            replay_grid,
            sampled_curve,
        )
    evictions = tracing.several(eviction, one_of(POLICIES), "--eviction")
    rates = tracing.several(sample, tracing.share, "--sample")
    if len(rates) > 1 or (rates and optimum):
        raise typer.BadParameter("--sample takes one share, and knows no optimum")
    found = tracing.find(model)
    sizes = tracing.sizes(blocks, share, memory, found, context)
    try:
        # Who asks for the span, or replays, reads the trace more than once.
        again = tracing.files(trace) if evictions or not block_size else nullcontext(tuple(trace))
        with needs("lab"), again as paths:
            source = TraceFiles(paths, trace_format, skip_bad, tokenizer)
            one = block_size or default_block_size(source())
            now = tracing.capacity(present, found, one, context) if present else None
            best = Optimum(one) if optimum else None
            with tracing.reading(paths, "reuse distances") as progress:
                requests = source(progress)
                if rates:
                    measured = sampled_curve(requests, one, rates[0])
                else:
                    measured = lru_curve(requests, one, observe=best.add if best else None)
            tracing.tell_what_was_passed_over(requests)
            capacities = sizes.in_blocks(one, measured.unique_blocks)
            configs = [ReplayConfig(capacity, one, eviction=name) for name in evictions for capacity in capacities]
            with tracing.replaying(len(configs), measured.requests * len(configs)) as served:
                results = replay_grid(source, configs, progress=served) if configs else []
    except RadixKVError as error:
        raise fail(str(error)) from None
    replayed: dict[str, dict[int, float]] = {name: {} for name in evictions}
    for result in results:
        replayed[result.config.eviction][result.config.blocks] = result.hit_rate
    block_bytes = one * found.token_bytes(context) if found else None
    report = curve_report(measured, capacities, best, replayed=replayed, block_bytes=block_bytes)
    if json != tracing.STDIN:
        _print(report, block_bytes)
    if json:
        tracing.write_json(report, json)
    if output:
        with needs("lab"):
            from radixkv.lab.plots import CurvePicture  # noqa: PLC0415  # matplotlib takes longest of all
        beside = {f"{name}, whole leaves (radix cache)": points for name, points in replayed.items()}
        with tracing.writing(output):
            CurvePicture(measured, best, beside, now, block_bytes).draw().save(output)


def _print(report: dict[str, Any], block_bytes: float | None) -> None:
    from radixkv.cli import tracing  # noqa: PLC0415  # as above
    from radixkv.lab import bytes_text  # noqa: PLC0415

    points, unique = report["points"], report["unique_blocks"]
    head = ["blocks", *(["memory"] if block_bytes else []), "of distinct", "LRU"]
    head += ["optimum"] if points and "optimum" in points[0] else []
    head += [f"{name}, radix" for name in points[0].get("replayed", {})] if points else []
    table = []
    for point in points:
        cells = [f"{point['blocks']:,}"]
        if block_bytes:
            cells.append(bytes_text(point["blocks"] * block_bytes))
        error = f" ± {2 * point['lru_error']:.4f}" if "lru_error" in point else ""
        cells += [f"{point['blocks'] / max(unique, 1):.1%}", f"{point['lru']:.4f}{error}"]
        cells += [f"{point['optimum']:.4f}"] if "optimum" in point else []
        cells += [f"{rate:.4f}" for rate in point.get("replayed", {}).values()]
        table.append(cells)
    typer.echo(
        f"{report['requests']:,} requests, {report['input_tokens']:,} input tokens; {unique:,} distinct blocks of "
        f"{report['block_size']} tokens.\n"
        f"Hit rate, in input tokens; {report['ceiling']:.4f} if nothing were ever evicted.\n"
    )
    tracing.print_table(head, table)
    if "sample" in report:
        typer.echo(f"\nEstimated from {report['sample']:.3%} of the blocks; ± two standard errors.")
    for cliff in report["cliffs"]:
        typer.echo("\n" + cliff["text"])
