"""What every reader of a format keeps to, and the checks of fields that they share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from radixkv.errors import TokenError
from radixkv.keys import TokenKey
from radixkv.traces.request import Request
from radixkv.traces.tokenizer import Tokenizer

_WALLS: Final = ("model", "lora_path", "namespace", "cache_salt")

Record: TypeAlias = Mapping[str, Any]
"""A line's JSON object."""


class BadLineError(ValueError):
    """A line that is no request of a format; `read_trace` makes a `TraceError` of it, which says where it stands."""

    def __init__(self, reason: str, *, field: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.field = reason, field


class TraceReader(Protocol):
    """Makes requests of the lines of one format.

    One reader serves every file of a trace, so that equal ids stay equal from file to file. Those of text take their
    tokens from `tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None: ...

    @staticmethod
    def fits(line: bytes) -> bool:
        """Whether a line looks like this format; asked of a file's first lines where nobody names its format."""
        ...

    @property
    def estimated(self) -> bool:
        """Whether the token counts of its requests are estimates."""
        ...

    def read(self, line: bytes) -> Sequence[Request]:
        """The requests of one line: one, but for a line that asks for several answers at once.

        Raises:
            BadLineError: the line is no request.
        """
        ...


def decoded(line: bytes) -> str:
    """The text of a line.

    Raises:
        BadLineError: it is not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadLineError(f"not UTF-8: byte {error.start} of the line is 0x{line[error.start]:02x}") from None


def parse(line: bytes) -> Record:
    """The JSON object on a line.

    Raises:
        BadLineError: it is not UTF-8, not JSON, or not an object.
    """
    text = decoded(line)
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadLineError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise BadLineError("not JSON that can be read: nested too deep") from None
    except ValueError as error:  # an integer of thousands of digits
        raise BadLineError(f"not JSON that can be read: {error}") from None
    if not isinstance(record, dict):
        raise BadLineError(f"expected a JSON object, got {kind(record)}")
    return record


def looks_like(line: bytes, *, having: frozenset[str], lacking: frozenset[str] = frozenset()) -> bool:
    """Whether a line is a JSON object that has all of the fields `having` and none of `lacking`."""
    try:
        record = parse(line)
    except BadLineError:
        return False
    return having <= record.keys() and not lacking & record.keys()


def integer(record: Record, field: str, *, minimum: int = 0, default: int | None = None) -> int:
    """A field that is an integer of at least `minimum`; `default`, unless it is None, where it is missing.

    Raises:
        BadLineError: it is missing, something else (a bool and 3.0 are), or too small.
    """
    value = record.get(field)
    if type(value) is int and value >= minimum:
        return value
    if value is None and default is not None:
        return default
    raise BadLineError(f"expected an integer of at least {minimum}, got {shown(record, field)}", field=field)


def seconds(record: Record, field: str = "timestamp", *, unit: float = 1) -> float | None:
    """A field that is a time, in `unit`s to a second; None where it is missing.

    Raises:
        BadLineError: it is no finite number.
    """
    value = record.get(field)
    if value is None:
        return None
    if type(value) in {int, float}:
        try:
            time: float = value / unit
        except OverflowError:
            time = math.inf
        if math.isfinite(time):
            return time
    raise BadLineError(f"expected a finite number, got {shown(record, field)}", field=field)


def string(record: Record, field: str) -> str | None:
    """A field that is a string; None where it is missing.

    Raises:
        BadLineError: it is something else.
    """
    value = record.get(field)
    if value is None or isinstance(value, str):
        return value
    raise BadLineError(f"expected a string, got {shown(record, field)}", field=field)


def namespace(record: Record) -> str | None:
    """What walls a request off from others: all of `model`, `lora_path`, `namespace` and `cache_salt` that it has.

    Another model, another adapter and another salt never share K and V.

    >>> namespace({"namespace": "a"}), namespace({"model": "m", "cache_salt": "s"}), namespace({})
    ('a', "model='m' cache_salt='s'", None)

    Raises:
        BadLineError: one of them is no string.
    """
    if record.keys().isdisjoint(_WALLS):
        return None
    walls = {field: wall for field in _WALLS if (wall := string(record, field)) is not None}
    if walls.keys() == {"namespace"}:
        return walls["namespace"]
    return " ".join(f"{field}={wall!r}" for field, wall in walls.items()) or None


def token_key(value: object, field: str) -> TokenKey:
    """A list of token ids as a key.

    Raises:
        BadLineError: it is no list of integers in [0, 2**32).
    """
    if not isinstance(value, list):
        raise BadLineError(f"expected a list of token ids, got {kind(value)}", field=field)
    try:
        return TokenKey(value)
    except TokenError as error:
        reason = f"a token is an integer in [0, 2**32), got {brief(error.value)} at index {error.index}"
        raise BadLineError(reason, field=field) from None


def shown(record: Record, field: str) -> str:
    """What a field holds, as a message about it says it."""
    return brief(record[field]) if field in record else "nothing: the field is missing"


def brief(value: object) -> str:
    """A value short enough for a message."""
    text = repr(value) if isinstance(value, str | int | float | None) else kind(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def kind(value: object) -> str:
    """A JSON value's type in JSON's words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a bool", type(None): "null"}
    return names.get(type(value), "a number")
