"""How a request's tokens become blocks: a trace may know no more than an id for every `span` tokens.

```text
span = 4, block_size = 8, so 2 words a block           input_tokens = 18
prompt     |  7  |  9  |  9  |  5  | 31 |               5 words, the last stands for 2 tokens
stored     |    block 0    |    block 1    |            input_tokens // 8 blocks are computed whole and kept
searched   |    block 0    |    block 1    |            (input_tokens - 1) // 8: the last token is always computed
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from radixkv.errors import RadixKVError
from radixkv.keys import TokenKey, check_size
from radixkv.traces import Request

_USUAL_BLOCK_SIZE: Final = 16


class SpanError(RadixKVError, ValueError):
    """A trace that does not tell the blocks asked for: `span` is the tokens that one of its ids stands for."""

    def __init__(self, reason: str, *, block_size: int, span: int) -> None:
        super().__init__(reason)
        self.block_size, self.span = block_size, span


def default_block_size(requests: Iterable[Request]) -> int:
    """What an id of the trace stands for; 16 where it has the tokens themselves, or is empty. Reads one request.

    >>> default_block_size([Request(TokenKey([7, 9]), input_tokens=1000, span=512)])
    512
    """
    first = next(iter(requests), None)
    return first.span if first and first.span > 1 else _USUAL_BLOCK_SIZE


class BlockWords:
    """How many words of `Request.prompt` make a block: the same for every request of a trace.

    Args:
        block_size: tokens a block.

    Raises:
        SizeError: a block size below 1.

    >>> BlockWords(1024).of(Request(TokenKey([7, 9]), input_tokens=1000, span=512))
    2
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = check_size("block_size", block_size, 1)
        self._span = 0
        self._words = 0

    def of(self, request: Request) -> int:
        """Words a block. O(1).

        Raises:
            SpanError: the block size is no whole multiple of the request's span, or an earlier request had another.
        """
        span = request.span
        if span != self._span:
            self._words = self._checked(span)
            self._span = span
        return self._words

    def _checked(self, span: int) -> int:
        if self._span:
            raise SpanError(
                f"a trace has one span, but an id stands for {self._span} tokens here and for {span} there",
                block_size=self.block_size,
                span=span,
            )
        words, rest = divmod(self.block_size, span)
        if rest or not words:
            raise SpanError(
                f"blocks of {self.block_size} tokens cannot be told from a trace with an id for every {span} tokens: "
                f"the block size must be a whole multiple of {span}",
                block_size=self.block_size,
                span=span,
            )
        return words


def prompt_key(request: Request) -> TokenKey:
    """The words of the prompt that stand for all their tokens: what an insert of the computed prompt may take.

    `request.prompt` itself goes to a match, which never covers its last word: so the last token, or a last block that
    is not full, is left out there by itself.
    """
    whole = request.input_tokens // request.span
    return request.prompt if whole == len(request.prompt) else request.prompt.prefix(whole)


def finished_key(request: Request) -> TokenKey | None:
    """Prompt and answer without the token sampled last, whose K and V nobody computed; None if the trace has no answer.

    An answer is known as tokens only, so where `span` is 1.
    """
    if request.span > 1 or len(request.output) < 2:
        return None
    return request.prompt.extended(request.output.prefix(len(request.output) - 1))
