"""Traces of block hashes: Mooncake's and Bailian's, which differ in the length of a block and the unit of time."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from radixkv.errors import TokenError
from radixkv.keys import TokenKey
from radixkv.traces.base import BadLineError, Record, brief, integer, kind, looks_like, namespace, parse, seconds, shown
from radixkv.traces.request import Request
from radixkv.traces.tokenizer import Tokenizer

_PLAIN_IDS: Final = 2**31
_UNTOLD: Final = TokenKey(())


class BlockIds:
    """Gives every block id of a trace, whatever it is, a word of 32 bits of its own.

    An integer below 2**31 is its own word. Any other integer, and any string, gets the next word above, in the order of
    first appearance: the same file gives the same words. Takes memory for those alone, as much as they are different.

    >>> ids = BlockIds()
    >>> ids.words([7, 2**63, "a0f3", -1, 2**63]).tolist()
    [7, 2147483648, 2147483649, 2147483650, 2147483648]
    """

    def __init__(self) -> None:
        self._words: dict[int | str, int] = {}

    def words(self, ids: list[Any]) -> TokenKey:
        """The ids as words. O(ids).

        Raises:
            BadLineError: an id that is neither an integer nor a string, such as a bool or 3.0.
        """
        try:
            key = TokenKey(ids)
        except TokenError:
            return TokenKey([self._word(block_id) for block_id in ids])
        if ids and max(ids) >= _PLAIN_IDS:
            return TokenKey([self._word(block_id) for block_id in ids])
        return key

    def _word(self, block_id: object) -> int:
        if isinstance(block_id, bool) or not isinstance(block_id, int | str):
            raise BadLineError(f"a block id is an integer or a string, got {brief(block_id)}", field="hash_ids")
        if isinstance(block_id, int) and 0 <= block_id < _PLAIN_IDS:
            return block_id
        return self._words.setdefault(block_id, _PLAIN_IDS + len(self._words))


class HashReader:
    """Reads `input_length`, `hash_ids` and, where they are there, `output_length`, `timestamp` and `namespace`."""

    span: ClassVar[int]
    """Tokens a block."""
    time_unit: ClassVar[float]
    """Units of `timestamp` to a second."""
    estimated: ClassVar[bool] = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._ids = BlockIds()

    def read(self, line: bytes) -> tuple[Request]:
        """The request of a line."""
        record = parse(line)
        input_tokens = integer(record, "input_length", minimum=1)
        return (
            Request(
                prompt=self._prompt(record, input_tokens),
                input_tokens=input_tokens,
                output_tokens=integer(record, "output_length", default=0),
                span=self.span,
                output=_UNTOLD,
                timestamp=seconds(record, unit=self.time_unit),
                namespace=namespace(record),
            ),
        )

    def _prompt(self, record: Record, input_tokens: int) -> TokenKey:
        ids = record.get("hash_ids")
        if not isinstance(ids, list):
            what = shown(record, "hash_ids") if ids is None else kind(ids)
            raise BadLineError(f"expected a list of block ids, got {what}", field="hash_ids")
        blocks = -(-input_tokens // self.span)
        if len(ids) != blocks:
            length = f"input_length {brief(input_tokens)} is {brief(blocks)} blocks of {self.span} tokens"
            raise BadLineError(f"{length}, got {len(ids)} ids", field="hash_ids")
        return self._ids.words(ids)


class MooncakeReader(HashReader):
    """Mooncake's traces: 512 tokens a block, `timestamp` in milliseconds."""

    span = 512
    time_unit = 1000

    @staticmethod
    def fits(line: bytes) -> bool:
        """Block ids, and no chat that they belong to."""
        return looks_like(line, having=frozenset({"hash_ids"}), lacking=frozenset({"chat_id"}))


class BailianReader(HashReader):
    """The Qwen-Bailian usage traces: 16 tokens a block, `timestamp` in seconds.

    `chat_id`, `parent_chat_id`, `type` and `turn` are passed over: what a turn shares with the one before it, its ids
    say.
    """

    span = 16
    time_unit = 1

    @staticmethod
    def fits(line: bytes) -> bool:
        """Block ids, and the chat that they belong to."""
        return looks_like(line, having=frozenset({"hash_ids", "chat_id"}))
