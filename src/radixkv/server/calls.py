"""The two calls that generate: from a body to the requests in the engine, and from their outputs to the answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from time import time

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from radixkv.engine import SamplingParams
from radixkv.server.answers import ChatForm, CompletionForm, Form, Json, Transcript, usage
from radixkv.server.errors import ApiError
from radixkv.server.generation import Generation
from radixkv.server.guards import read_body
from radixkv.server.protocol import Body, Call, ChatBody, CompletionBody, parse
from radixkv.server.sse import DONE, HEARTBEAT, EventStream, event, unless_disconnected
from radixkv.server.state import ServerState, Serving


async def chat_completions(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    state: ServerState = request.app.state.server
    serving = state.serving()
    call = parse(await read_body(request, state.config), ChatBody)
    body = call.body
    serving.check_model(body.model)
    messages = [_message(message.role, message.text, message.name) for message in body.messages]
    prompt = await serving.tokens.chat(messages)
    params = _params(body, body.token_limit, body.top_logprobs if body.logprobs else None)
    return await _answer(request, state, serving, call, ChatForm(serving.tokens), [prompt], params, "messages")


async def completions(request: Request) -> Response:
    """`POST /v1/completions`."""
    state: ServerState = request.app.state.server
    serving = state.serving()
    call = parse(await read_body(request, state.config), CompletionBody)
    body = call.body
    serving.check_model(body.model)
    _check_choices(len(body.prompts), body.n, state.config.max_choices)
    prompts = await serving.tokens.prompts(body.prompts)
    params = _params(body, body.max_tokens, body.logprobs)
    return await _answer(request, state, serving, call, CompletionForm(serving.tokens), prompts, params, "prompt")


def _message(role: str, text: str, name: str | None) -> dict[str, str]:
    message = {"role": "system" if role == "developer" else role, "content": text}
    return message if name is None else message | {"name": name}


def _params(body: Body, token_limit: int | None, logprobs: int | None) -> SamplingParams:
    return SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        max_tokens=token_limit,
        stop=body.stops,
        stop_token_ids=tuple(body.stop_token_ids),
        logprobs=logprobs,
        repetition_penalty=body.repetition_penalty,
        ignore_eos=body.ignore_eos,
    )


def _check_choices(prompts: int, n: int, most: int) -> None:
    if prompts * n > most:
        message = f"The call asks for {prompts * n} choices; at most {most} are answered at once."
        raise ApiError(400, message, param="n" if n > 1 else "prompt", code="invalid_value")


async def _answer(  # noqa: PLR0913, PLR0917  # one call, all that is known of it
    request: Request,
    state: ServerState,
    serving: Serving,
    call: Call[ChatBody] | Call[CompletionBody],
    form: Form,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    param: str,
) -> Response:
    body = call.body
    _check_choices(len(prompts), body.n, state.config.max_choices)
    answer = {"id": form.prefix + secrets.token_hex(12), "created": int(time()), "model": serving.name}
    headers = {"X-Request-Id": str(answer["id"])}
    if call.labels:
        headers["X-RadixKV-Ignored"] = ", ".join(call.labels)
    generation = state.generation(serving)
    try:
        generation.submit(prompts, params, n=body.n, namespace=body.cache_salt, param=param)
        generation.limit(state.config.request_seconds)
        if body.stream:
            events = _events(generation, form, answer, body.include_usage, state.config.heartbeat_seconds)
            seconds = state.config.request_seconds + state.config.grace_seconds
            return EventStream(events, close=generation.close, seconds=seconds, headers=headers)
        whole = await unless_disconnected(_whole(generation, form, answer), request.receive)
    except BaseException:
        generation.close()
        raise
    generation.close()
    if whole is None:
        raise ClientDisconnect
    return JSONResponse(whole, headers=headers)


async def _whole(generation: Generation, form: Form, answer: Json) -> Json:
    """The answer in one piece, once every choice has ended."""
    transcripts = [Transcript() for _ in generation.choices]
    while generation.running:
        index, output = await generation.next()
        transcripts[index].add(output)
    choices = [
        form.whole(index, transcript.text, transcript.logprobs, transcript.reason)
        for index, transcript in enumerate(transcripts)
    ]
    return answer | {"object": form.whole_object, "choices": choices, "usage": usage(generation.choices)}


async def _events(
    generation: Generation, form: Form, answer: Json, include_usage: bool, heartbeat_seconds: float
) -> AsyncIterator[bytes]:
    """The answer as events. What ends it early is said in an event of its own; `[DONE]` comes last in any case."""
    counts: Json = {"usage": None} if include_usage else {}
    chunk = answer | {"object": form.piece_object}
    for index in range(len(generation.choices)):
        if (choice := form.opening(index)) is not None:
            yield event(chunk | {"choices": [choice]} | counts)
    try:
        while generation.running:
            try:
                async with asyncio.timeout(heartbeat_seconds):
                    index, output = await generation.next()
            except TimeoutError:
                yield HEARTBEAT
                continue
            if output.text or output.logprobs or output.finish_reason:
                choice = form.piece(index, output.text, output.logprobs, output.finish_reason)
                yield event(chunk | {"choices": [choice]} | counts)
        if include_usage:
            yield event(chunk | {"choices": [], "usage": usage(generation.choices)})
    except ApiError as error:
        yield event(error.body())
    except Exception:
        yield event(ApiError(500, "The server failed.", code="internal_error").body())
        yield DONE
        raise
    yield DONE
