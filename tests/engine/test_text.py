"""Text that comes token by token is the text of all tokens, whole characters, and free of stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.engine import LoadedModel
from radixkv.engine.text import REPLACEMENT, Detokenizer, StopStrings

BYTES = st.lists(st.integers(0, 255), max_size=30)


def lossy(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def spaced(tokens: Sequence[int]) -> str:
    """Like a tokenizer of words that drops the leading space."""
    return " ".join(f"w{token}" for token in tokens)


def parts(decode: Detokenizer, tokens: Sequence[int]) -> list[str]:
    return [*map(decode.push, tokens), decode.flush()]


@given(BYTES)
def test_any_bytes(tokens: list[int]) -> None:
    """Whatever comes, broken or not: nothing is lost, nothing said twice."""
    assert lossy(tokens) == "".join(parts(Detokenizer(lossy), tokens))


@given(st.text(max_size=20), st.text(max_size=5))
def test_whole_characters(text: str, context: str) -> None:
    """A character whose bytes are spread over tokens comes as one, and never as a broken one."""
    told = text.replace(REPLACEMENT, "").encode(errors="ignore")
    said = parts(Detokenizer(lossy, list(context.encode(errors="ignore"))), list(told))

    assert told.decode() == "".join(said)
    assert REPLACEMENT not in "".join(said)


@given(BYTES)
def test_the_tiny_tokenizer(tiny: LoadedModel, tokens: list[int]) -> None:
    """The same through a tokenizer of the tokenizers package, special tokens left out."""
    assert lossy(tokens) == tiny.decode(tokens) == tiny.decode([*tokens, 256])
    assert lossy(tokens) == "".join(parts(Detokenizer(tiny.decode), tokens))


def test_leading_spaces_are_kept() -> None:
    """The prompt's last tokens are decoded along: the first new word keeps its space."""
    assert [" w3", " w4", ""] == parts(Detokenizer(spaced, [1, 2]), [3, 4])


def test_no_patience_without_end() -> None:
    """Bytes that never become a character come out while they go on, not only in the end."""
    said = parts(Detokenizer(lossy), [0xFF] * 40)

    assert said[20] == REPLACEMENT
    assert REPLACEMENT * 40 == "".join(said)


@given(
    st.lists(st.text("ab", max_size=3), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings(pieces: list[str], stops: list[str]) -> None:
    """However the text is cut, what comes out ends before the first stop string, and was never ahead of it."""
    text = "".join(pieces)
    ends = [place for place in map(text.find, stops) if place >= 0]
    matcher, out = StopStrings(stops), ""
    for piece in pieces:
        before = matcher.found
        out += matcher.push(piece)
        assert text.startswith(out)
        if before:
            assert matcher.found
    out += "" if matcher.found else matcher.flush()

    assert bool(ends) == matcher.found
    if not ends:
        assert text == out
    else:
        # found as soon as its last letter comes: of two that overlap, the one that is complete first
        first = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        seen = next(n for n in range(len(pieces) + 1) if len("".join(pieces[:n])) >= first)
        known = "".join(pieces[:seen])
        assert known[: min(place for place in map(known.find, stops) if place >= 0)] == out


def test_nothing_is_held_without_stop_strings() -> None:
    matcher = StopStrings(())

    assert ("abc", "") == (matcher.push("abc"), matcher.flush())


@pytest.mark.parametrize("held", ["a", "aa", "aab"])
def test_the_longest_beginning_is_held(held: str) -> None:
    matcher = StopStrings(["aabb"])

    assert "x" == matcher.push("x" + held)
    assert held == matcher.flush()
