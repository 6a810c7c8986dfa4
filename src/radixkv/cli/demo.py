"""`radixkv demo`: a chat of three turns, each of which pays for its new words alone."""

from __future__ import annotations

from typing import Annotated

import typer

from radixkv.cli.say import fail, needs


def demo(
    model: Annotated[str | None, typer.Option(help="As of `radixkv serve`. By default, SmolLM2-135M-Instruct.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens an answer.")] = 48,
) -> None:
    """Start a server, hold a chat of three turns, show what each turn found cached, and end."""
    with needs("demo"):
        from radixkv.server.demo import DemoError, run  # noqa: PLC0415  # takes seconds
    try:
        run(model, max_tokens=max_tokens, say=typer.echo)
    except DemoError as error:
        raise fail(str(error)) from None
