"""The bodies of calls: which fields there are, what they may hold, and what is said of those that are not served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic_core import from_json

from radixkv.server.errors import ApiError, invalid, unsupported

MAX_STOPS: Final = 16
MAX_TOP_LOGPROBS: Final = 20

LABELS: Final = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "user"})
"""Fields that name a call and change nothing about its answer. Taken, and listed in the response's headers."""

NEUTRAL: Final[Mapping[str, tuple[tuple[Any, ...], str | None]]] = {
    "audio": ((), None),
    "best_of": ((1,), "1"),
    "echo": ((False,), "false"),
    "frequency_penalty": ((0,), "0"),
    "function_call": (("none",), "'none'"),
    "functions": (([],), "an empty list"),
    "logit_bias": (({},), "an empty object"),
    "modalities": ((["text"],), "['text']"),
    "moderation": ((), None),
    "parallel_tool_calls": ((True, False), "a boolean"),
    "prediction": ((), None),
    "presence_penalty": ((0,), "0"),
    "prompt_cache_options": ((), None),
    "prompt_cache_retention": (("in_memory",), "'in_memory'"),
    "reasoning_effort": (("none",), "'none'"),
    "response_format": (({"type": "text"},), "{'type': 'text'}"),
    "service_tier": (("auto", "default"), "'auto' or 'default'"),
    "store": ((False,), "false"),
    "suffix": (("",), "an empty string"),
    "tool_choice": (("none", "auto"), "'none' or 'auto'"),
    "tools": (([],), "an empty list"),
    "verbosity": (("medium",), "'medium'"),
    "web_search_options": ((), None),
}
"""Fields of OpenAI's API that are not served: the values that mean nothing here and so are taken, and how to say them.

Any other value is an error: nobody is left to believe that a field had its effect."""

CONFIG: Final = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)

Stop = Annotated[str, StringConstraints(min_length=1)]
Token = Annotated[int, Field(ge=0, lt=2**32)]


class StreamOptions(BaseModel):
    """What a stream tells beside its text."""

    model_config = CONFIG

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Body(BaseModel):
    """What both calls have in common."""

    model_config = CONFIG

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] = Field(default_factory=list)
    # Beyond OpenAI's API.
    top_k: int = Field(default=0, ge=0)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=10.0)
    stop_token_ids: list[Token] = Field(default_factory=list, max_length=MAX_STOPS)
    ignore_eos: bool = False
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, however many were sent."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "'stream_options' needs 'stream': true.", param="stream_options", code="invalid_value")
        return self


class TextPart(BaseModel):
    """A piece of a message's content."""

    model_config = CONFIG

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a chat."""

    model_config = CONFIG

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        """The content, its parts joined."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(Body):
    """The body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def token_limit(self) -> int | None:
        """How many tokens may be generated; None: as many as there is room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            message = "'max_tokens' and 'max_completion_tokens' are two names of one limit: send one of them."
            raise ApiError(400, message, param="max_tokens", code="invalid_value")
        return self


class CompletionBody(Body):
    """The body of `/v1/completions`."""

    prompt: str | list[str] | list[Token] | list[list[Token]]
    max_tokens: int = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One text or one list of tokens a prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [item for item in self.prompt if isinstance(item, int)]
        texts = [item for item in self.prompt if isinstance(item, str)]
        return [tokens] if tokens else texts or [item for item in self.prompt if isinstance(item, list)]


B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class Call(Generic[B]):
    """A body that is right, and the fields that it is answered without."""

    body: B
    labels: tuple[str, ...]
    """Fields that were sent and have no effect here, by name."""


def parse(data: bytes, kind: type[B]) -> Call[B]:
    """Read a call's body. O(bytes).

    A field with null is as good as absent, as OpenAI's clients send many of them.

    Raises:
        ApiError: it is no JSON object, or a field is unknown, missing, wrong or not served; says which.
    """
    try:
        fields = from_json(data)  # with NaN and Infinity, as Python writes them: the field that has one is named
    except ValueError as error:  # it says what and where, and quotes nothing
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    fields = {name: value for name, value in fields.items() if value is not None}
    labels = tuple(sorted(LABELS & fields.keys()))
    for name in labels:
        del fields[name]
    _drop_neutral(fields)
    if kind is ChatBody and isinstance(fields.get("messages"), list):
        fields["messages"] = _plain_messages(fields["messages"])
    try:
        body = kind.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        raise invalid(faults, fields) from None
    return Call(body, labels)


def _drop_neutral(fields: dict[str, Any]) -> None:
    for name, (neutral, accepted) in NEUTRAL.items():
        if name in fields and not any(_same(fields[name], value) for value in neutral):
            raise unsupported(name, accepted=accepted)
        fields.pop(name, None)


def _same(given: Any, value: Any) -> bool:
    """Whether they are equal as JSON is: false is not 0."""
    return bool(given == value) and isinstance(given, bool) == isinstance(value, bool)


def _plain_messages(messages: list[Any]) -> list[Any]:
    """The messages without the empty fields that clients send back from an answer; what is not served is refused."""
    plain = []
    for place, message in enumerate(messages):
        if isinstance(message, dict):
            message = {name: value for name, value in message.items() if value not in (None, [])}  # noqa: PLW2901
            for name in ("audio", "annotations", "function_call", "refusal", "tool_call_id", "tool_calls"):
                if name in message:
                    raise unsupported(f"messages[{place}].{name}")
            if message.get("role") in ("tool", "function"):
                raise unsupported(f"messages[{place}].role", accepted="system, developer, user and assistant")
            _check_parts(message.get("content"), f"messages[{place}].content")
        plain.append(message)
    return plain


def _check_parts(content: Any, path: str) -> None:
    """Say of an image or a sound that it is not served, rather than that it is a wrong text."""
    for place, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and part.get("type", "text") != "text":
            raise unsupported(f"{path}[{place}].type", accepted="'text'")
