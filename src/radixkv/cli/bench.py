"""`radixkv bench`: the engine on the workloads that prefix caching is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from radixkv.cli.runtime import set_up_process
from radixkv.cli.say import fail, needs
from radixkv.errors import RadixKVError


def bench(  # noqa: PLR0913, PLR0917  # one parameter an option
    model: Annotated[str | None, typer.Option(help="As of `radixkv serve`. By default, SmolLM2-135M-Instruct.")] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"], typer.Option(help="As of `radixkv serve`.")
    ] = "auto",
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A workload; may be given again.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Twice as many requests, twice as long.")] = False,
    clock: Annotated[
        Literal["wall", "cpu"], typer.Option(help="cpu counts processor time, for a machine that is busy.")
    ] = "wall",
    peer: Annotated[bool, typer.Option(help="Run llama.cpp's server, too.")] = True,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write all figures; - for standard output.")
    ] = None,
) -> None:
    """Measure the engine with and without a prefix cache, on workloads of real English text."""
    set_up_process()
    with needs("bench"):
        from radixkv.bench import report  # noqa: PLC0415  # takes seconds
        from radixkv.bench.run import run  # noqa: PLC0415
    json_only = json_path == Path("-")
    try:
        result = run(
            model,
            dtype=dtype,
            only=only or (),
            full=full,
            processor_time=clock == "cpu",
            peer=peer,
            on_workload=(lambda *_: None) if json_only else report.show_workload,
        )
    except RadixKVError as error:
        raise fail(str(error)) from None
    text = json.dumps(report.as_json(result), indent=2)
    if json_only:
        typer.echo(text)
        return
    report.show_rest(result)
    if json_path:
        try:
            json_path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise fail(f"cannot write {json_path}: {error.strerror}") from None
