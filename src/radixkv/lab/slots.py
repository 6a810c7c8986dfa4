"""A Fenwick tree over requests: how many blocks were used later than by a given one."""

from __future__ import annotations

from array import array


class Slots:
    """Requests in their order, each with a number of blocks that can be taken out: a Fenwick tree. O(log slots) a call.

    ```text
    slot       0   1   2   3        append: a new slot at the end
    blocks     4   0   2   7        above(0) = 9
    ```
    """

    def __init__(self, size: int = 1024) -> None:
        self.requests = array("q")
        """The request of every slot."""
        self._least = self._size = size
        self._sums = [0] * (size + 1)  # _sums[i] is of the slots from i - (i & -i) to i - 1
        self._total = 0

    @property
    def full(self) -> bool:
        """Whether there is no slot left; `compact` makes some."""
        return len(self.requests) == self._size

    def append(self, request: int, blocks: int) -> int:
        """A new slot at the end."""
        slot = len(self.requests)
        self.requests.append(request)
        self._add(slot, blocks)
        return slot

    def take_out(self, slot: int, blocks: int) -> None:
        """Blocks of that slot are gone."""
        self._add(slot, -blocks)

    def above(self, slot: int) -> int:
        """Blocks of all later slots."""
        sums, before, i = self._sums, 0, slot + 1
        while i:
            before += sums[i]
            i &= i - 1
        return self._total - before

    def weights(self) -> list[int]:
        """Blocks of every slot. O(slots)."""
        weights = self._sums[1:]
        for i in range(self._size, 0, -1):
            parent = i + (i & -i)
            if parent <= self._size:
                weights[parent - 1] -= self._sums[i]
        return weights[: len(self.requests)]

    def compact(self) -> dict[int, int]:
        """Drop the slots without blocks, and make room for as many again as are left. O(slots), so O(1) a request.

        Returns the new slot of each that is left.
        """
        left = [(slot, weight) for slot, weight in enumerate(self.weights()) if weight]
        self.requests = array("q", [self.requests[slot] for slot, _ in left])
        self._size = max(2 * len(left), self._least)
        self._sums = [0] * (self._size + 1)
        self._total = 0
        for new, (_, weight) in enumerate(left):
            self._add(new, weight)
        return {slot: new for new, (slot, _) in enumerate(left)}

    def _add(self, slot: int, blocks: int) -> None:
        self._total += blocks
        sums, size, i = self._sums, self._size, slot + 1
        while i <= size:
            sums[i] += blocks
            i += i & -i
