"""Hypothesis strategies: block sizes 1 to 4 and three tokens, so that prefixes meet and part all the time."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

block_sizes = st.integers(1, 4)
tokens = st.integers(0, 2)
token_lists = st.lists(tokens, max_size=10)
namespaces = st.sampled_from([None, None, "a"])
priorities = st.integers(0, 2)


class Prompt(NamedTuple):
    """A prompt before the block size is known: some of three whole blocks, then single tokens."""

    blocks: Sequence[int]
    tail: Sequence[int]

    def spelled(self, block_size: int) -> list[int]:
        """The tokens. The three blocks differ in their last token only, or in the first."""
        words = ([0] * block_size, [0] * (block_size - 1) + [1], [2] + [0] * (block_size - 1))
        return [token for block in self.blocks for token in words[block]] + list(self.tail)


prompts = st.builds(Prompt, st.lists(tokens, max_size=5), st.lists(tokens, max_size=4))
short_prompts = st.builds(Prompt, st.lists(tokens, max_size=3), st.lists(tokens, min_size=1, max_size=3))
