"""Hit density: keep what earns the most hits for the room and the time that it takes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, chain
from operator import add, attrgetter, sub
from typing import Any, Final, TypeAlias

from radixkv.eviction.lru import Lru

SAMPLE: Final = 128
"""Leaves looked at together."""
BATCH: Final = 16
"""Of so many leaves looked at one goes, before others are looked at."""
PERIOD: Final = 192
"""Requests between two looks at what was learned; at first there are more."""
KEPT: Final = 0.88
"""What a look leaves of the weight of older observations."""
LEAD: Final = 1.01
"""How many times what LRU earned densities must have earned, for the policy to begin to go by them."""
GHOSTS: Final = 8
"""Evicted nodes remembered, for every node that is cached."""
LEAST_GHOSTS: Final = 128
"""Evicted nodes remembered in any case."""
MOST_WEIGHT: Final = 16
"""A node counts by its blocks, up to these: one huge prompt is still one observation. The last of `DISTANCES`."""
PRIOR: Final = 16.0
"""Weight of what holds for all nodes, in what is believed of one kind."""

DISTANCES: Final = (1, 4, 16)
"""Blocks between a node and its prompt's end, at which another kind begins."""
HIT_STEP: Final = len(DISTANCES) + 1
KINDS: Final = 4 * HIT_STEP
"""None, one, two, or more hits; and for each, how far from the end: kind = hits * HIT_STEP + distance."""

MOST_HITS: Final = KINDS - HIT_STEP
"""From here on a hit more makes no difference."""

# Ages, in requests: one bin each up to 8, then two an octave.
EXACT: Final = 8
OCTAVES: Final = 10
STARTS: Final = (*range(EXACT), *(EXACT * 2**o * (2 + half) // 2 for o in range(OCTAVES) for half in (0, 1)))
WIDTHS: Final = tuple(end - start for start, end in zip(STARTS, (*STARTS[1:], EXACT * 2**OCTAVES), strict=True))
BINS: Final = b"".join(bytes([i]) * width for i, width in enumerate(WIDTHS))  # age to bin
OLDEST: Final = len(BINS) - 1
AGE_TIE: Final = 1e-12
"""What a request of age takes from a density: too little to matter but between leaves that are worth the same."""
STEP: Final = 64
"""Requests whose last uses are counted together."""
STEPS: Final = 128
"""Steps that are told apart; whatever was used before them is of the last bin of ages."""


_ZEROS: Final = array("d", bytes(8 * len(WIDTHS)))
_NOTHING: Final = array("q", bytes(8 * KINDS))  # an array, so that it takes as much whatever it counts
_RECENCY: Final = [float(bin_) for bin_ in range(len(WIDTHS), 0, -1)] * KINDS
"""What LRU takes every kind and age to be worth."""


class _Entry:
    """What is known of a cached node. Without an `__init__`, which is three quarters of the price."""

    __slots__ = ("kind", "name", "node", "place", "time", "weight")

    node: Any
    name: Hashable
    kind: int
    weight: int
    time: int
    """Of the last use."""
    place: int
    """Among the leaves, -1 outside."""


_Ghost: TypeAlias = tuple[int, int, int]
"""What is known of an evicted node: kind, time of the last use, weight."""


class Density:
    """Evict the leaf of the lowest hit density: of which the fewest hits are expected for every request that it stays.

    How long until a node is used again depends on what it is: a node of a growing chat comes back within a few requests
    or never, a system prompt steadily, a prompt seen once mostly not at all. Nodes are told apart by kind: how often
    they were hit, and how far before the prompt's end they stand. For every kind the policy keeps a histogram of the
    ages, in requests since the last use, at which nodes were used again, those evicted meanwhile included. From it
    follows for every age the chance of a use within any time from now, and the density: the most that any horizon
    promises of hits for every request of room,

        max over h of  P(used within h, as it was not until now) / E[time until that use, or h if it is sooner].

    That is the Gittins index of the node, the best order in which to serve jobs of unknown length, here the order in
    which to keep. It needs no tuning for a traffic: of a cycle too long for the cache it keeps a part that fits, where
    LRU keeps nothing.

    Where LRU is right, as for chats, densities promise little that recency does not, and most of the little is noise of
    few observations: to follow it costs hits. So the policy evicts as LRU does until densities have earned more. Every
    `PERIOD` requests it works out which kinds and ages a cache of this size keeps by either order, and counts, of what
    is used in the next period, how much either kept. By whichever earned more, of late, it goes. Neither order is
    judged by what it was learned from, and both are judged always, whichever it goes by. To go over to densities takes
    a lead of one in a hundred: less is noise, too.

    Victims by density are the lowest of `SAMPLE` leaves, spread evenly, and before them what was just inserted or
    bared, if it is lower; which, is a function of the calls alone. A match counts as a use; the insert that follows is
    the same request's. New nodes are judged like all others, so a prompt may be evicted right after it was inserted.

    After Beckmann and Sanchez, "Maximizing Cache Performance Under Uncertainty" (EVA, 2017); Beckmann, Chen and Cidon,
    "LHD: Improving Cache Hit Rate by Maximizing Hit Density" (2018); Gittins (1979). Theirs are of objects; kinds by
    the place in a prompt, ghosts as observations, the exact index, and the comparison with LRU are of here.

    Cost: O(path) a request, O(`BATCH`) an eviction; O(leaves log leaves) when it changes sides. Memory: about 0.2 KB a
    cached node, and as much a ghost, of which there are at most `GHOSTS` for every cached node, or `LEAST_GHOSTS`, and
    those evicted since the last request.
    """

    def __init__(self) -> None:
        self._now = 0  # requests
        self._entries: dict[Any, _Entry] = {}
        self._leaves: list[_Entry] = []
        self._ghosts: OrderedDict[Hashable, _Ghost] = OrderedDict()  # the one evicted first is forgotten first
        self._samples = 0
        self._evicted: list[_Entry] = []  # until `_end_evictions`
        self._path: list[Any] = []  # of the last insert, until `_end_insert`
        self._density = [_ZEROS] * KINDS
        self._reused = [_ZEROS[:] for _ in range(KINDS)]
        self._forgotten = [_ZEROS[:] for _ in range(KINDS)]  # ghosts, by their age then
        # The weight of nodes and ghosts by the step of their last use, modulo `STEPS`, and by kind.
        self._waiting = [_NOTHING[:] for _ in range(STEPS)]
        self._oldest_step = -1  # and all before it
        self._latest = self._waiting[0]  # of now
        self._next_look = EXACT
        self._candidates: list[tuple[_Entry, int]] = []  # the lowest last; with the last use that they were ranked by
        self._lru = Lru()
        self._by_density = False  # or as LRU does
        self._cached_weight = 0
        self._last_look = 0
        self._requests = 0.0  # faded like what was counted in them
        self._before = [0.0] * KINDS * len(WIDTHS)  # `_reused` after the last look
        self._plans = [_Plan(_RECENCY, self._before, 0)] * 2  # of the last look: by density, by recency
        self._earned = [0.0, 0.0]  # by these, faded

    def inserted(self, node: Any, priority: int) -> None:
        """O(1) now, and O(1) and what a content's name costs once the insert is done."""
        self._path.append(node)

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """O(path), and what evictions since the last use left to do, O(1) each."""
        if self._path:
            self._end_insert()
        if self._evicted:
            self._end_evictions()
        if priority is None:
            self._matched(path)
        else:
            self._path = list(path)
            for node in reversed(path):
                entry = self._entries[node]
                if entry.time == self._now:
                    break
                # The prompt's last block, which the match left out.
                self._row(entry.time)[entry.kind] -= entry.weight
                self._latest[entry.kind] += entry.weight
                entry.time = self._now
        if not self._by_density:
            self._lru.used(path, priority)

    def _matched(self, path: Sequence[Any]) -> None:
        """A request begins: of every node one age ends, and another begins. A run of one kind and time goes at once."""
        self._now = now = self._now + 1
        if now >= self._next_look:
            self._look()
        self._latest = self._waiting[now // STEP % STEPS]
        entries = self._entries
        kind, time, weight = 0, now, 0
        for node in path:
            entry = entries[node]
            if entry.kind == kind and entry.time == time:
                weight += entry.weight
            else:
                if weight:
                    self._used_again(kind, time, weight)
                kind, time, weight = entry.kind, entry.time, entry.weight
            if kind < MOST_HITS:
                entry.kind = kind + HIT_STEP
            entry.time = now
        if weight:
            self._used_again(kind, time, weight)

    def split(self, upper: Any, lower: Any) -> None:
        """O(1), and what a content's name costs. Both halves have the past of the whole."""
        self._end_insert()
        self._end_evictions()
        whole = self._entries[lower]
        ghost = self._ghosts.pop(lower.content_name, None)  # it went before the whole was inserted
        if ghost is not None:
            self._ended(*ghost, self._forgotten)
        before = whole.weight
        self._entries[upper] = half = _Entry()
        half.node, half.name, half.kind, half.time, half.place = upper, whole.name, whole.kind, whole.time, -1
        half.weight = min(upper.num_blocks, MOST_WEIGHT)
        whole.name, whole.weight = lower.content_name, min(lower.num_blocks, MOST_WEIGHT)
        more = half.weight + whole.weight - before
        self._cached_weight += more
        self._row(whole.time)[whole.kind] += more

    def removed(self, node: Any) -> None:
        """O(1)."""
        if self._by_density:
            self.protected(node)
        else:
            self._lru.protected(node)
        self._evicted.append(self._entries.pop(node))

    def evictable(self, node: Any) -> None:
        """O(1), as LRU does it O(log leaves) for a leaf that comes out of order."""
        if self._path:  # now: before it can be split, or removed, it has its name
            self._end_insert()
        if self._by_density:
            entry = self._entries[node]
            entry.place = len(self._leaves)
            self._leaves.append(entry)
        else:
            self._lru.evictable(node)

    def protected(self, node: Any) -> None:
        """O(1)."""
        if self._by_density:
            entry, last = self._entries[node], self._leaves.pop()
            if last is not entry:
                self._leaves[entry.place] = last
                last.place = entry.place
            entry.place = -1
        else:
            self._lru.protected(node)

    def victim(self) -> Any | None:
        """O(`BATCH`). Of leaves that are worth the same, the one used longest ago."""
        if self._path:
            self._end_insert()
        if not self._leaves:
            return self._lru.victim()  # of all leaves, or none
        lowest = self._lowest_sampled()
        newest = self._leaves[-1]  # what was just inserted, or the parent of what was just evicted
        return (newest if self._rank(newest) < self._rank(lowest) else lowest).node

    def _lowest_sampled(self) -> _Entry:
        """The lowest of the last sample that is left as it was; of a new sample if none is."""
        candidates = self._candidates
        while True:
            while candidates:
                entry, time = candidates[-1]
                if entry.place >= 0 and entry.time == time:
                    return entry
                candidates.pop()
            step = len(self._leaves) // SAMPLE + 1
            sample = self._leaves[self._samples % step :: step]
            self._samples += 1
            now, density, bins, oldest = self._now, self._density, BINS, OLDEST
            ages = [now - entry.time for entry in sample]
            ranks = [
                density[entry.kind][bins[age if age < oldest else oldest]] - age * AGE_TIE  # noqa: FURB136  # as above
                for entry, age in zip(sample, ages, strict=True)
            ]
            lowest = sorted(range(len(ranks)), key=ranks.__getitem__)[: max(len(ranks) // BATCH, 1)]
            candidates += [(sample[i], now - ages[i]) for i in reversed(lowest)]

    def _rank(self, entry: _Entry) -> float:
        """The density now, a little less for the older."""
        age = self._now - entry.time
        return self._density[entry.kind][BINS[min(OLDEST, age)]] - age * AGE_TIE

    def _end_insert(self) -> None:
        """Note the nodes that the last insert made; give those of its path their distance from its end.

        A node keeps the greatest distance yet. What is before one of the last of `DISTANCES` has that, too.
        """
        entries, ghosts, latest = self._entries, self._ghosts, self._latest  # all of the path was used just now
        now, after, cached = self._now, 0, 0
        for node in reversed(self._path):
            entry = entries.get(node)
            kind = bisect_right(DISTANCES, after) if after < MOST_WEIGHT else HIT_STEP - 1
            if entry is None:
                name, blocks = node.content_name, node.num_blocks
                ghost = ghosts.pop(name, None)
                if ghost is not None:
                    self._ended(*ghost, self._reused)
                    kind += min(ghost[0] - ghost[0] % HIT_STEP + HIT_STEP, MOST_HITS)  # one more than the ghost's
                weight = blocks if blocks < MOST_WEIGHT else MOST_WEIGHT  # noqa: FURB136  # half the price
                entries[node] = entry = _Entry()
                entry.node, entry.name, entry.place = node, name, -1
                entry.kind, entry.weight, entry.time = kind, weight, now
                latest[kind] += weight
                cached += weight
            else:
                weight, farther = entry.weight, kind - entry.kind % HIT_STEP
                if farther > 0:
                    latest[entry.kind] -= weight
                    entry.kind += farther
                    latest[entry.kind] += weight
                elif kind - farther == HIT_STEP - 1:
                    break
            after += weight  # no fewer than its blocks, as far as distances go
        self._cached_weight += cached
        self._path = []

    def _end_evictions(self) -> None:
        """Make ghosts of what was evicted; forget those evicted first, if there are too many."""
        ghosts = self._ghosts
        for entry in self._evicted:
            ghosts[entry.name] = entry.kind, entry.time, entry.weight
            self._cached_weight -= entry.weight
        self._evicted = []
        # As in `_matched`, a run of one kind and time at once.
        kind, time, weight = 0, self._now, 0
        for _ in range(len(ghosts) - max(GHOSTS * len(self._entries), LEAST_GHOSTS)):
            _, ghost = ghosts.popitem(last=False)
            if ghost[0] == kind and ghost[1] == time:
                weight += ghost[2]
            else:
                self._ended(kind, time, weight, self._forgotten)
                kind, time, weight = ghost
        self._ended(kind, time, weight, self._forgotten)

    # --- observations ----------------------------------------------------------------------------------------------

    def _row(self, time: int) -> array[int]:
        """What waits, last used at that time, by kind."""
        return self._waiting[max(time // STEP, self._oldest_step) % STEPS]

    def _ended(self, kind: int, time: int, weight: int, histograms: list[array[float]]) -> None:
        """Note that something waits no longer: it was used again, or is forgotten, at the age that it has now."""
        age, step, oldest = self._now - time, time // STEP, self._oldest_step
        histograms[kind][BINS[age if age < OLDEST else OLDEST]] += weight  # noqa: FURB136  # half the price
        self._waiting[(step if step > oldest else oldest) % STEPS][kind] -= weight  # noqa: FURB136  # as `_row`

    def _used_again(self, kind: int, time: int, weight: int) -> None:
        """Note a use of cached nodes, now: a hit more, and the age is 0 again."""
        self._ended(kind, time, weight, self._reused)
        self._latest[kind + HIT_STEP if kind < MOST_HITS else kind] += weight

    def _look(self) -> None:
        """Learn from what was counted, and let it fade. O(kinds x (bins + steps))."""
        waiting = [[0.0] * len(WIDTHS) for _ in range(KINDS)]  # by age
        came = [sum(reused) for reused in self._reused]  # to every kind, faded
        now, oldest = self._now, self._oldest_step
        for step in range(oldest, now // STEP + 1):
            age = now - (step * STEP + STEP // 2) if step > oldest else OLDEST
            bin_, fade = BINS[max(min(age, OLDEST), 0)], KEPT ** ((now - step * STEP) / PERIOD)
            for kind, weight in enumerate(self._waiting[step % STEPS]):
                if weight:
                    came[kind] += weight * fade
                    if age > 0:
                        waiting[kind][bin_] += weight
        ended = [list(map(add, *both)) for both in zip(waiting, self._forgotten, strict=True)]
        general = _chances(_sums(self._reused), _sums(ended), _ZEROS)
        chances = [
            _chances(self._reused[kind], ended[kind], general) if weight else general
            for kind, weight in enumerate(came)
        ]
        anything = _densities(general)
        self._density = [anything if each is general else _densities(each) for each in chances]
        self._compare(chances, came)
        for histogram in (*self._reused, *self._forgotten):
            if any(histogram):
                histogram[:] = array("d", [weight * KEPT for weight in histogram])
        self._before = _flat(self._reused)
        self._next_look = min(2 * now, (now // PERIOD + 1) * PERIOD)
        while self._next_look // STEP - self._oldest_step >= STEPS:  # the steps until then need the rows
            last, self._oldest_step = self._waiting[self._oldest_step % STEPS], self._oldest_step + 1
            oldest_row = self._waiting[self._oldest_step % STEPS]
            oldest_row[:] = array("q", map(add, oldest_row, last))
            last[:] = _NOTHING

    def _compare(self, chances: list[list[float]], came: list[float]) -> None:
        """Go by what would have kept more of what was used since the last look: density or recency.

        Both are held to keep whatever of their order's upper end fills the cache, at the traffic before that look: so
        neither has seen what it is judged by.
        """
        used = list(map(sub, _flat(self._reused), self._before))
        earned = [before * KEPT + plan.kept(used) for before, plan in zip(self._earned, self._plans, strict=True)]
        self._earned = earned
        if self._by_density != (earned[0] > earned[1] * (1 if self._by_density else LEAD)):
            self._change_sides()
        self._requests = self._requests * KEPT + self._now - self._last_look
        self._last_look = self._now
        stay = _flat(
            _stay(each, weight / self._requests) if weight else _ZEROS
            for each, weight in zip(chances, came, strict=True)
        )
        worth = _flat(accumulate(density, min) for density in self._density)
        self._plans = [_Plan(order, stay, self._cached_weight) for order in (worth, _RECENCY)]

    def _change_sides(self) -> None:
        """Hand the leaves from LRU over to be sampled, or back. O(leaves log leaves)."""
        leaves = [entry.node for entry in self._leaves]
        while (node := self._lru.victim()) is not None:
            self._lru.protected(node)
            leaves.append(node)
        self._leaves, self._candidates = [], []
        self._by_density = not self._by_density
        for node in sorted(leaves, key=attrgetter("last_use")):
            self.evictable(node)


class _Plan:
    """What a cache keeps that keeps what is worth most: all above a price, and of what is worth just that a share."""

    def __init__(self, worth: list[float], stay: list[float], room: float) -> None:
        self._worth, self._price, self._share = worth, -1.0, 1.0
        weights: dict[float, float] = defaultdict(float)
        for value, weight in zip(worth, stay, strict=True):
            weights[value] += weight
        for value in sorted(weights, reverse=True):
            if weights[value] > room:
                self._price, self._share = value, room / weights[value]
                break
            room -= weights[value]

    def kept(self, used: list[float]) -> float:
        """Of the weight that was used, what was kept till then."""
        price, share = self._price, self._share
        return sum(
            weight if value > price else weight * share
            for weight, value in zip(used, self._worth, strict=True)
            if value >= price
        )


def _flat(rows: Iterable[Iterable[float]]) -> list[float]:
    """One row after the other."""
    return list(chain.from_iterable(rows))


def _sums(histograms: Sequence[Sequence[float]]) -> list[float]:
    """All kinds together, bin by bin."""
    return list(map(sum, zip(*histograms, strict=True)))


def _chances(reused: Sequence[float], others: Sequence[float], general: Sequence[float]) -> list[float]:
    """For every bin the chance that a node which came to that age is used in it; `general` where little is known."""
    chances = []
    came = PRIOR
    for used, other, prior in zip(reversed(reused), reversed(others), reversed(general), strict=True):
        came += used + other
        chances.append((used + PRIOR * prior) / came)
    chances.reverse()
    return chances


def _stay(chances: Sequence[float], came: float) -> list[float]:
    """The weight that is at every age at a time, if so much comes with every request and nothing is evicted."""
    stay = []
    for width, chance in zip(WIDTHS, chances, strict=True):
        stay.append(came * width * (1 - chance / 2))
        came *= 1 - chance
    return stay


def _densities(chances: Sequence[float]) -> array[float]:
    """For every bin the most hits for the time that some horizon promises a node of that age.

    With the hits expected so far over the time expected so far as a curve, that is the steepest line from a point of it
    to a later one: found for all points from the last to the first, on the upper hull of those behind. O(bins).
    """
    alive, hits, time = 1.0, 0.0, 0.0
    curve = [(time, hits)]
    for width, chance in zip(WIDTHS, chances, strict=True):
        used = alive * chance
        hits += used
        time += width * (alive - used / 2)
        alive -= used
        curve.append((time, hits))
    hull: list[tuple[float, float]] = []
    densities = array("d")
    later_time, later_hits = curve.pop()  # the last of the hull
    for time, hits in reversed(curve):
        steepest = (later_hits - hits) / (later_time - time)
        while hull:
            next_time, next_hits = hull[-1]
            slope = (next_hits - hits) / (next_time - time)
            if slope < steepest:
                break
            hull.pop()
            later_time, later_hits, steepest = next_time, next_hits, slope
        densities.append(steepest)
        hull.append((later_time, later_hits))
        later_time, later_hits = time, hits
    densities.reverse()
    return densities
