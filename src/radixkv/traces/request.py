"""What a trace is made of: one record a request, whatever the file's format."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixkv.keys import TokenKey


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    A trace has either the tokens themselves, or one id for every `span` tokens, where equal ids mean an equal prefix up
    to and including them. Both are a `TokenKey`, whose words stand for `span` tokens each; the last may stand for less.

    ```text
    input_tokens = 1200, span = 512        prompt |  7  |  9  | 31 |     2 whole blocks and a part of one
                                                   0   512  1024 1200
    ```
    """

    prompt: TokenKey
    """One word for every `span` tokens, so `ceil(input_tokens / span)` of them."""
    input_tokens: int
    """Length of the prompt, in tokens."""
    output_tokens: int = 0
    """Length of the answer, in tokens."""
    span: int = 1
    """Tokens that a word of `prompt` stands for; 1 where the trace has the tokens themselves."""
    output: TokenKey = field(default_factory=lambda: TokenKey(()))
    """The answer's tokens, as a continuation of `prompt`; empty where the trace does not tell."""
    timestamp: float | None = None
    """Seconds, from wherever the trace counts."""
    namespace: str | None = None
    """What may share K and V with nothing outside it."""
    text: str | None = None
    """The prompt as text, where the trace has it: to show where two prompts part."""
