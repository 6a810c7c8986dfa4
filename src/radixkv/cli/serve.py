"""`radixkv serve`: a model behind the OpenAI API."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer

from radixkv.cli.runtime import set_up_process
from radixkv.cli.say import fail, needs, one_of, size
from radixkv.errors import RadixKVError
from radixkv.eviction import POLICIES
from radixkv.scheduler import ORDERS

_ORDERS = ", ".join(sorted(ORDERS))
_POLICIES = ", ".join(sorted(POLICIES))
_ENGINE = "Engine"
_SERVER = "Server"


def serve(  # noqa: PLR0913, PLR0917  # one parameter an option
    model: Annotated[
        str | None,
        typer.Option(help="A folder, a .gguf file or a Hugging Face name. By default, SmolLM2-135M-Instruct."),
    ] = None,
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"], typer.Option(help="Of weights and cache.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto.")] = "auto",
    kv_memory: Annotated[
        int | None,
        typer.Option(
            parser=size, metavar="SIZE", help="Memory for K and V, as 2GiB. [default: 1GiB]", rich_help_panel=_ENGINE
        ),
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(min=1, help="Blocks for K and V, instead of --kv-memory.", rich_help_panel=_ENGINE)
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens a block.", rich_help_panel=_ENGINE)] = 16,
    prefix_cache: Annotated[
        Literal["radix", "hash", "none"], typer.Option(help="What finds cached prefixes.", rich_help_panel=_ENGINE)
    ] = "radix",
    eviction: Annotated[
        str,
        typer.Option(
            parser=one_of(POLICIES), metavar="NAME", help=f"What goes first: {_POLICIES}.", rich_help_panel=_ENGINE
        ),
    ] = "lru",
    order: Annotated[
        str,
        typer.Option(
            parser=one_of(ORDERS), metavar="NAME", help=f"Who is admitted next: {_ORDERS}.", rich_help_panel=_ENGINE
        ),
    ] = "lpm",
    max_skips: Annotated[
        int, typer.Option(min=0, help="How often a waiting request may be passed over.", rich_help_panel=_ENGINE)
    ] = 256,
    token_budget: Annotated[int, typer.Option(min=1, help="Tokens a step.", rich_help_panel=_ENGINE)] = 512,
    max_running: Annotated[int, typer.Option(min=1, help="Requests that run at once.", rich_help_panel=_ENGINE)] = 32,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Requests that may wait, before 429.", rich_help_panel=_ENGINE)
    ] = 1024,
    host: Annotated[str, typer.Option(help="Address to listen at.", rich_help_panel=_SERVER)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.", rich_help_panel=_SERVER)] = 8000,
    served_name: Annotated[
        str | None, typer.Option(help="The model's name in the API. [default: its own]", rich_help_panel=_SERVER)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="RADIXKV_API_KEY", help="What clients must send as a bearer token.", rich_help_panel=_SERVER
        ),
    ] = None,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Let /cache show prompts as text.", rich_help_panel=_SERVER)
    ] = False,
    access_log: Annotated[bool, typer.Option(help="Log a line a call.", rich_help_panel=_SERVER)] = True,
    max_body: Annotated[
        int,
        typer.Option(
            parser=size, metavar="SIZE", help="Longest request body.", show_default="16MiB", rich_help_panel=_SERVER
        ),
    ] = 16 * 2**20,
    request_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds a call may take in all.", rich_help_panel=_SERVER)
    ] = 600.0,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that calls get to finish in at the end.", rich_help_panel=_SERVER)
    ] = 30.0,
) -> None:
    """Serve a model behind the OpenAI API, with a prefix cache."""
    set_up_process()
    with needs("server"):
        from radixkv.engine import EngineConfig  # noqa: PLC0415  # takes seconds
        from radixkv.server import process  # noqa: PLC0415
        from radixkv.server.config import ServerConfig  # noqa: PLC0415
    try:
        engine_config = EngineConfig(
            num_blocks=blocks,
            kv_memory=kv_memory,
            block_size=block_size,
            prefix_cache=prefix_cache,
            eviction=eviction,
            order=order,
            max_skips=max_skips,
            token_budget=token_budget,
            max_running=max_running,
            max_waiting=max_waiting,
        )
        server_config = ServerConfig(
            host=host,
            port=port,
            api_key=api_key,
            served_name=served_name,
            show_text=show_text,
            access_log=access_log,
            max_body_bytes=max_body,
            request_seconds=request_timeout,
            grace_seconds=grace,
        )
        make_engine = partial(process.load_engine, model, dtype=dtype, device=device, config=engine_config)
        process.serve(make_engine, server_config)
    except RadixKVError as error:
        raise fail(str(error)) from None
