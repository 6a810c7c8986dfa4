"""`radixkv doctor`: why a trace's hit rate is what it is, and what each fix would be worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radixkv.cli import options
from radixkv.cli.say import fail, needs
from radixkv.errors import RadixKVError

if TYPE_CHECKING:
    from radixkv.lab.doctor import Diagnosis


def doctor(  # noqa: PLR0913, PLR0917  # one parameter an option
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
    replicas: Annotated[int, typer.Option(min=1, max=256, help="How many to try; 1 tries none.")] = 4,
    workers: options.Workers = None,
    report: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write a page with all of it and pictures: .html.")
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the pictures there, each as .svg and .png.")
    ] = None,
    json: options.Json = None,
) -> None:
    """Say where every missed token went, and what each fix is worth by running the trace again with it.

    The cache is taken to evict single blocks, least recently used first, as most engines do. Give one size: --blocks,
    --share, or --memory with --model.
    """
    with needs("lab"):
        from radixkv.cli import tracing  # noqa: PLC0415  # takes a while, and needs more than the command line
        from radixkv.lab import TraceFiles, default_block_size, lru_curve  # noqa: PLC0415
        from radixkv.lab.doctor import diagnose  # noqa: PLC0415
    if sum(size is not None for size in (blocks, share, memory)) != 1:
        raise typer.BadParameter("give one size: --blocks, --share, or --memory with --model")
    found = tracing.find(model)
    sizes = tracing.sizes(blocks, share, memory, found, context)
    if len((*sizes.blocks, *sizes.shares, *sizes.memory)) != 1:
        raise typer.BadParameter("give one size, not several")
    try:
        with tracing.files(trace) as paths:
            source = TraceFiles(paths, trace_format, skip_bad, tokenizer)
            one = block_size or default_block_size(source())
            with tracing.reading(paths, "counting blocks") as progress:
                requests = source(progress)
                unique = lru_curve(requests, one).unique_blocks
            tracing.tell_what_was_passed_over(requests)
            (capacity,) = sizes.in_blocks(one, unique)
            with tracing.working("finding causes and trying fixes"):
                diagnosis = diagnose(
                    source,
                    capacity,
                    one,
                    replicas=replicas,
                    workers=workers,
                    block_bytes=one * found.token_bytes(context) if found else None,
                )
    except RadixKVError as error:
        raise fail(str(error)) from None
    if json != tracing.STDIN:
        _print(diagnosis)
    if json:
        tracing.write_json(diagnosis.to_json(), json)
    if report:
        with needs("lab"):
            from radixkv.lab.report import html_report  # noqa: PLC0415  # matplotlib takes longest of all
        with tracing.writing(report):
            report.write_text(html_report(diagnosis, trace=", ".join(trace)), encoding="utf-8")
    if pictures:
        with needs("lab"):
            from radixkv.lab.pictures import diagnosis_pictures  # noqa: PLC0415  # as above
        with tracing.writing(pictures):
            pictures.mkdir(parents=True, exist_ok=True)
            for name, picture in diagnosis_pictures(diagnosis).items():
                for suffix in (".svg", ".png"):
                    picture.save(pictures / f"{name}{suffix}")


def _print(found: Diagnosis) -> None:
    from radixkv.cli import tracing  # noqa: PLC0415  # as above
    from radixkv.lab.wording import cause_rows, fix_rows, idle_fixes, no_splits, split_text  # noqa: PLC0415

    curve = found.curve
    typer.echo(
        f"{curve.requests:,} requests, {curve.input_tokens:,} input tokens, {curve.unique_blocks:,} distinct blocks of "
        f"{found.block_size} tokens; a cache of {found.size_text(found.blocks)}.\n"
        f"Hit rate {found.hit_rate:.1%}. The best any policy could do at this size is "
        f"{found.share(found.optimum_tokens):.1%}, and with memory for everything {curve.ceiling:.1%}.\n"
    )
    typer.echo("Where the tokens went")
    causes = [(cause, meaning, tokens, share) for cause, tokens, share, meaning in cause_rows(found)]
    tracing.print_table(["", "", "tokens", "share"], causes, left=2)
    typer.echo("\nSigns of churn")
    for symptom in found.symptoms:
        typer.echo(f"  {'yes' if symptom.found else ' no'}  {symptom.name}: {symptom.text}")
    if found.splits:
        typer.echo("\nPrompts whose bodies agree but which part early")
        for split in found.splits:
            typer.echo(f"  {split_text(found, split)}")
            typer.echo(f"     behind {split.shared!r}\n        one {split.one!r}\n    another {split.other!r}")
    else:
        typer.echo(f"\nPrompts whose bodies agree but which part early: {no_splits(found)}")
    typer.echo("\nWhat each fix is worth")
    tracing.print_table(["fix", "hit rate", "gain, points", "tokens saved"], fix_rows(found), left=1)
    typer.echo(f"{idle_fixes(found)}\n\n{found.verdict}".lstrip("\n"))
