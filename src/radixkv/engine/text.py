"""From tokens to text while they come: no broken characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_CONTEXT: Final = 4  # tokens of the prompt decoded along: some tokenizers drop a text's leading space
_PATIENCE: Final = 12  # tokens that a character may take before its bytes pass for broken
_OPEN_BYTES: Final = 3  # of a character that is not complete yet, at most


class Detokenizer:
    """Turns tokens into text one by one: the parts together are the text of all tokens.

    Text that ends in a replacement character may be the beginning of a character whose other bytes are still to come:
    it is held back until they do, or until `flush`.

    Args:
        decode: tokens to text, the tokenizer's.
        context: tokens before the first, the prompt's.

    >>> detokenizer = Detokenizer(lambda tokens: bytes(tokens).decode(errors="replace"))
    >>> [detokenizer.push(byte) for byte in "né".encode()], detokenizer.flush()
    (['n', '', 'é'], '')
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-_CONTEXT:])  # what is decoded: tokens whose text is out, then the held ones
        self._settled = len(self._window)
        self._sent = len(decode(self._window)) if self._window else 0  # characters of the window's text that are out

    def push(self, token: int) -> str:
        """The text that `token` completes. O(tokens held back)."""
        self._window.append(token)
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._settle(text)
        if len(self._window) - self._settled < _PATIENCE:
            return ""
        broken = len(text) - len(text.rstrip(REPLACEMENT))
        return self._send(text[: len(text) - min(broken, _OPEN_BYTES)])

    def flush(self) -> str:
        """What is still held back, broken or not: no more tokens come."""
        return self._settle(self._decode(self._window)) if self._window else ""

    def _settle(self, text: str) -> str:
        """All is out; the window begins anew with the tokens that were held, as context of those to come."""
        new = self._send(text)
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        self._sent = len(self._decode(self._window)) if self._window else 0
        return new

    def _send(self, text: str) -> str:
        new = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return new


class StopStrings:
    """Lets text through up to the first stop string, and holds back what may be the beginning of one.

    Args:
        stops: the strings; none empty.

    >>> stops = StopStrings([".."])
    >>> [stops.push("ab."), stops.push("c."), stops.push(".d")], stops.found
    (['ab', '.c', ''], True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        """Whether a stop string came: nothing is let through any more."""

    def push(self, text: str) -> str:
        """The part of the text so far that can go out. O(text held * length of the stop strings)."""
        if not self._stops or self.found:
            return "" if self.found else text
        text = self._held + text
        places = [place for place in map(text.find, self._stops) if place >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        hold = max(map(_overlap, (text,) * len(self._stops), self._stops))
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def flush(self) -> str:
        """What is held back: no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
