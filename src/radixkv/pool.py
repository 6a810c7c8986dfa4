"""The block pool: which ids are free, and who owns the others."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Final

from radixkv.errors import BlockOwnershipError, InvariantError, OutOfBlocksError, SizeError
from radixkv.keys import TOKEN_LIMIT, block_ids, check_size

OWNERS: Final = ("free", "request", "cache")
_FREE, _REQUEST, _CACHE = range(len(OWNERS))


class BlockPool:
    """A fixed set of block ids, each owned by the free list, a running request, or the cache.

    ```text
                 allocate               adopt
        free  ------------>  request  ---------->  cache
          ^                     |                    |
          |        free         |      reclaim       |
          +---------------------+--------------------+
    ```

    Every call checks all its ids first: one that raises has moved none. O(ids) a call. The id freed last is handed out
    first, while its memory is warm.

    Args:
        num_blocks: how many ids, 1 or more.
        first_id: the lowest; the ids are consecutive.

    Raises:
        SizeError: no blocks, or ids beyond 2**32.

    >>> pool = BlockPool(4)
    >>> ids = pool.allocate(3)
    >>> ids, pool.num_free, pool.owner(0)
    (array('I', [0, 1, 2]), 1, 'request')
    >>> pool.adopt(ids[:1])
    >>> pool.free(ids)
    Traceback (most recent call last):
    radixkv.errors.BlockOwnershipError: block 0 is owned by 'cache', not by 'request'
    """

    def __init__(self, num_blocks: int, *, first_id: int = 0) -> None:
        self.num_blocks = check_size("num_blocks", num_blocks, 1)
        self._first = check_size("first_id", first_id, 0)
        room = TOKEN_LIMIT - self._first
        if room < self.num_blocks:
            raise SizeError(name="room for the ids below 2**32", minimum=self.num_blocks, given=room)
        self._owner = bytearray(self.num_blocks)  # an index of OWNERS for every id
        self._free = array("I", range(self._first + self.num_blocks - 1, self._first - 1, -1))  # taken from the end

    @property
    def num_free(self) -> int:
        """Ids that nobody owns. O(1)."""
        return len(self._free)

    def owner(self, block: int) -> str:
        """Who owns a block: "free", "request", "cache"; "nobody" for an id outside the pool. O(1)."""
        place = block - self._first
        return OWNERS[self._owner[place]] if 0 <= place < self.num_blocks else "nobody"

    def allocate(self, n: int) -> array[int]:
        """Hand `n` free blocks to a request.

        Raises:
            OutOfBlocksError: fewer are free.
            SizeError: a negative n.
        """
        wanted = check_size("n", n, 0)
        left = len(self._free) - wanted
        if left < 0:
            raise OutOfBlocksError(wanted=wanted, available=len(self._free))
        ids = self._free[left:]
        ids.reverse()
        del self._free[left:]
        for block in ids:
            self._owner[block - self._first] = _REQUEST
        return ids

    def free(self, ids: Iterable[int]) -> None:
        """Take blocks back from a request.

        Raises:
            BlockOwnershipError: one is free already, the cache's, not of this pool, or named twice.
            BlockIdError: one is no block id.
        """
        self._free.extend(self._move(ids, _REQUEST, _FREE))

    def adopt(self, ids: Iterable[int]) -> None:
        """Note that the cache took blocks over from a request.

        Raises:
            BlockOwnershipError, BlockIdError: as `free`.
        """
        self._move(ids, _REQUEST, _CACHE)

    def reclaim(self, ids: Iterable[int]) -> None:
        """Take back blocks that the cache evicted.

        Raises:
            BlockOwnershipError: one is not the cache's, or named twice.
            BlockIdError: one is no block id.
        """
        self._free.extend(self._move(ids, _CACHE, _FREE))

    def check_invariants(self) -> None:
        """Compare the free list with the owners. O(num_blocks).

        Raises:
            InvariantError: an id is twice in the free list, or in it and owned.
        """
        listed = sorted(self._free)
        owned = [self._first + place for place, owner in enumerate(self._owner) if owner == _FREE]
        if listed != owned:
            wrong = sorted((Counter(listed) - Counter(owned) | Counter(owned) - Counter(listed)).elements())
            raise InvariantError(f"the free list and the owners disagree on blocks {wrong}")

    def _move(self, ids: Iterable[int], source: int, target: int) -> array[int]:
        moved = block_ids(ids)
        owners, first = self._owner, self._first
        done = 0
        for block in moved:
            place = block - first
            if not 0 <= place < self.num_blocks or owners[place] != source:
                break
            owners[place] = target
            done += 1
        else:
            return moved
        owner = self.owner(moved[done])
        for block in moved[:done]:
            owners[block - first] = source
        raise BlockOwnershipError(block=moved[done], owner=owner, expected=OWNERS[source])
