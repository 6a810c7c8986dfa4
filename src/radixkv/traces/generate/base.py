"""What every workload keeps to, and what they draw from: chance and text that a seed makes anew on any machine."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from array import array
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from hashlib import shake_128
from itertools import accumulate, islice
from random import Random
from typing import NamedTuple, TypeVar

from radixkv.errors import RadixKVError
from radixkv.keys import TokenKey, check_size
from radixkv.traces.request import Request

T = TypeVar("T")


class Draws:
    """Chance and text of one seed.

    Only `Random.random` is drawn from, which Python promises to be the same in every version; text is made by SHAKE-128
    of its name. So a seed makes the same workload everywhere.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(seed).random

    def share(self) -> float:
        """A number in [0, 1)."""
        return self._random()

    def below(self, limit: int) -> int:
        """An integer in [0, limit)."""
        return int(self._random() * limit)

    def around(self, mean: int) -> int:
        """A length, evenly from half of `mean` to one and a half, and at least 1."""
        return max(1, round(mean * (0.5 + self._random())))

    def pause(self, rate: float) -> float:
        """Time to the next of `rate` events a second."""
        return -math.log1p(-self._random()) / rate

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in an order of chance (Fisher-Yates)."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def text(self, length: int, *name: str | int) -> array[int]:
        """`length` tokens in [0, 65536), the same for the same name; a longer one of a name begins with the shorter."""
        digest = shake_128(repr((self._seed, name)).encode()).digest(2 * length)
        tokens = array("H", digest)
        if sys.byteorder == "big":
            tokens.byteswap()
        return array("I", tokens)


class Zipf:
    """Numbers in [0, count), the i-th with a weight of 1 / (i+1)**exponent; an exponent of 0 makes them equal.

    >>> rare = Zipf(3, 1.0)
    >>> draws = Draws(0)
    >>> sorted(((drawn := [rare.draw(draws) for _ in range(1100)]).count(i) for i in range(3)), reverse=True)[0] > 500
    True
    """

    def __init__(self, count: int, exponent: float) -> None:
        self._sums = list(accumulate((rank + 1) ** -exponent for rank in range(count)))

    def draw(self, draws: Draws) -> int:
        """One of them. O(log count)."""
        return min(bisect(self._sums, draws.share() * self._sums[-1]), len(self._sums) - 1)


class WorkloadError(RadixKVError, ValueError):
    """A parameter of a workload that cannot be."""

    def __init__(self, *, name: str, expected: str, given: object) -> None:
        super().__init__(f"{name} must be {expected}, got {given!r}")
        self.name, self.expected, self.given = name, expected, given


class Exchange(NamedTuple):
    """A prompt and its answer."""

    prompt: array[int]
    answer: array[int]


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """Traffic of one kind. Its fields are its parameters: counts, shares, and lengths in tokens.

    A mean length is drawn evenly from half of it to one and a half.
    """

    rate: float = 1.0
    """Requests a second; they come at random (a Poisson process)."""

    def __post_init__(self) -> None:
        """Check every parameter.

        Raises:
            SizeError: a count or a length below 1, or below what its field allows.
            WorkloadError: another number that cannot be.
        """
        for parameter in fields(self):
            value, least = getattr(self, parameter.name), parameter.metadata.get("minimum", 1)
            if isinstance(parameter.default, int):
                check_size(parameter.name, value, least)
            elif type(value) not in {int, float} or not math.isfinite(value) or value < 0:
                raise WorkloadError(name=parameter.name, expected="a finite number of at least 0", given=value)
        if not self.rate:
            raise WorkloadError(name="rate", expected="above 0", given=self.rate)

    def requests(self, count: int, seed: int) -> Iterator[Request]:
        """The first `count` requests that a seed makes, in the order of their times; the same on every machine.

        Raises:
            SizeError: a negative count.
        """
        check_size("count", count, 0)
        return self._timed(count, Draws(seed))

    @abstractmethod
    def exchanges(self, draws: Draws) -> Iterator[Exchange]:
        """Prompts and answers without end, in the order in which they are asked for."""

    def _timed(self, count: int, draws: Draws) -> Iterator[Request]:
        clock = 0.0
        for prompt, answer in islice(self.exchanges(draws), count):
            clock += draws.pause(self.rate)
            yield Request(
                prompt=TokenKey(prompt),
                input_tokens=len(prompt),
                output_tokens=len(answer),
                output=TokenKey(answer),
                timestamp=round(clock, 3),
            )


def interleaved(draws: Draws, session: Callable[[int], Iterator[Exchange]], at_once: int) -> Iterator[Exchange]:
    """The exchanges of sessions 0, 1, 2 and on, `at_once` of them at a time.

    One at random goes on; where it has ended, the next session takes its place.
    """
    live = [session(number) for number in range(at_once)]
    begun = at_once
    while True:
        place = draws.below(at_once)
        exchange = next(live[place], None)
        if exchange is not None:
            yield exchange
        else:
            live[place] = session(begun)
            begun += 1
