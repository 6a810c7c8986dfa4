"""From text to tokens: a real tokenizer by name, or an estimate that needs no download."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32

from radixkv.errors import MissingExtraError, RadixKVError
from radixkv.keys import TokenKey

if TYPE_CHECKING:
    import tokenizers

# A mark such as <|im_end|>; letters of English by eights, a character of Chinese, Japanese or Korean by itself, other
# letters by threes, digits and signs by threes. A space goes with what it stands before.
_PIECES: Final = re.compile(
    r"<\|[\w:]{1,40}\|>"
    r"| ?[A-Za-z]{1,8}"
    r"|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]"
    r"| ?[^\W\d_A-Za-z\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]{1,3}"
    r"|\d{1,3}|_+| ?[^\w\s]{1,3}|\s+(?!\S)|\s"
)


class TokenizerError(RadixKVError, ValueError):
    """A tokenizer that cannot be had, or a text that it cannot take."""


class Tokenizer(Protocol):
    """What the readers of text need of a tokenizer."""

    @property
    def estimates(self) -> bool:
        """Whether its token counts are estimates."""
        ...

    def encode(self, text: str) -> TokenKey:
        """The tokens of a text, without those that stand for its start or end.

        Raises:
            TokenizerError: it cannot take the text.
        """
        ...


class EstimatingTokenizer:
    """Splits a text about where tokenizers do, and takes the checksum of each piece for its token.

    Needs no download. Equal texts have equal tokens, and texts that agree up to some point have equal tokens up to
    about there; how many they are is an estimate.

    >>> EstimatingTokenizer().encode("Hello, world").tolist()
    [4157704578, 3772416878, 1245397707]
    """

    estimates: Final = True

    def encode(self, text: str) -> TokenKey:
        """One token a piece; takes any text. O(characters)."""
        return TokenKey([crc32(piece.encode(errors="surrogatepass")) for piece in _PIECES.findall(text)])


class PretrainedTokenizer:
    """A tokenizer of the `tokenizers` library."""

    estimates: Final = False

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> TokenKey:
        """The tokens of a text, without those that stand for its start or end.

        Raises:
            TokenizerError: it cannot take the text, such as half a surrogate pair.
        """
        try:
            return TokenKey(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except Exception as error:  # the library raises bare ones
            raise TokenizerError(f"the tokenizer cannot take it: {error}") from error


def load_tokenizer(name: str) -> PretrainedTokenizer:
    """A tokenizer: a `tokenizer.json`, a folder that has one, or a Hugging Face name, which may be downloaded.

    Raises:
        TokenizerError: it cannot be had.
        MissingExtraError: the package `tokenizers` is not installed.
    """
    try:
        import tokenizers  # noqa: PLC0415  # only where somebody names a tokenizer
    except ImportError:
        raise MissingExtraError(part="a tokenizer", package="tokenizers", extra="lab") from None
    path = Path(name)
    if path.is_dir():
        path /= "tokenizer.json"
    try:
        if path.is_file():
            return PretrainedTokenizer(tokenizers.Tokenizer.from_file(str(path)))
        return PretrainedTokenizer(tokenizers.Tokenizer.from_pretrained(name))
    except Exception as error:  # the library raises bare ones
        raise TokenizerError(f"cannot load the tokenizer {name!r}: {error}") from error
