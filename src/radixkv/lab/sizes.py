"""Capacities as people give them: in blocks, in shares of what a trace touches, or in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from radixkv.errors import RadixKVError, SizeError
from radixkv.lab.models import ModelCost

USUAL_SHARES: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Of the distinct blocks of a trace, where nobody gives a size."""

_UNITS: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def bytes_text(count: float) -> str:
    """Bytes as people write them, to three digits.

    >>> bytes_text(38.25 * 2**30)
    '38.2 GiB'
    """
    unit, power = next(((unit, power) for unit, power in _UNITS if count >= power), ("B", 1))
    return f"{count / power:.4g} {unit}" if count / power >= 1000 else f"{count / power:.3g} {unit}"


class ShareError(RadixKVError, ValueError):
    """A share that is not above 0 and up to 1."""

    def __init__(self, *, share: float) -> None:
        super().__init__(f"a share is above 0 % and up to 100 %, got {share:.0%}")
        self.share = share


@dataclass(frozen=True, slots=True)
class Sizes:
    """Capacities, the same whatever the block size if they are shares or memory.

    Raises:
        SizeError: a capacity that is not above 0, or a share above 1.

    >>> Sizes(shares=(0.01, 0.02)).in_blocks(512, unique_blocks=80_781)
    [807, 1615]
    """

    blocks: tuple[int, ...] = ()
    """In blocks."""
    shares: tuple[float, ...] = ()
    """Of the trace's distinct blocks, above 0 and up to 1."""
    memory: tuple[int, ...] = ()
    """In bytes, of K and V of `model`."""
    model: ModelCost | None = None
    context: int | None = None
    """See `ModelCost.token_bytes`."""

    def __post_init__(self) -> None:
        for name, given in (("blocks", self.blocks), ("bytes of memory", self.memory)):
            for size in given:
                if size < 1:
                    raise SizeError(name=name, minimum=1, given=size)
        for share in self.shares:
            if not 0 < share <= 1:
                raise ShareError(share=share)

    def in_blocks(self, block_size: int, unique_blocks: int) -> list[int]:
        """The capacities in blocks of `block_size` tokens, ascending, each once; of a share at least 1.

        Raises:
            MemoryTooSmallError: memory for less than one block.
        """
        found = {*self.blocks, *(max(int(share * unique_blocks), 1) for share in self.shares)}
        if self.model:
            found |= {self.model.blocks_in(memory, block_size, self.context) for memory in self.memory}
        return sorted(found)
