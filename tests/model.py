"""Brute-force models of the prefix caches and the block manager: flat, slow and obvious.

They share nothing with `radixkv`. A cache is a dict from whole prefixes to block ids and a list of the places where
nodes end; parents, children, leaves and locks are found by scanning that list each time they are asked for.
A refusal carries the name of the error that the contract asks for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Prefix = tuple[str | None, tuple[int, ...]]
"""A namespace and every token from the start: what names one cached block, the one that ends there."""


class Refusal(Exception):
    """A call that the contract refuses: `kind` is the name of the error, `numbers` what it has to say."""

    def __init__(self, kind: str, **numbers: int) -> None:
        super().__init__(kind, numbers)
        self.kind, self.numbers = kind, numbers


class End:
    """A place where a node ends: the whole prefix up to there, and what the policies remember of the node."""

    def __init__(self, prefix: Prefix, created: int) -> None:
        self.prefix = prefix
        self.created = created
        self.last_use = created
        self.uses = 1
        self.priority = 0
        self.protected = False
        self.serial = 0
        self.references = [0, created]  # the last two, an insert right after a match left out
        self.behind = 0  # blocks, of the longest prompt that was inserted through here
        self.size = 0  # blocks, for the ranks
        self.locks = 0  # taken on this very end; those of longer ends are found by scanning

    def __len__(self) -> int:
        return len(self.prefix[1])

    def __bool__(self) -> bool:
        return True

    def starts(self, other: "End") -> bool:
        """Whether the other end is this one or lies behind it."""
        (namespace, tokens), (other_namespace, other_tokens) = self.prefix, other.prefix
        return not tokens or (namespace == other_namespace and other_tokens[: len(tokens)] == tokens)


class Found(NamedTuple):
    """What a match answers."""

    matched_tokens: int
    blocks: list[int]
    end: End


class Added(NamedTuple):
    """What an insert answers."""

    new_blocks: int
    duplicates: list[int]
    end: End


RANKS: dict[str, Callable[[End], tuple[int, ...]]] = {
    "lru": lambda end: (end.last_use,),
    "mru": lambda end: (-end.last_use,),
    "fifo": lambda end: (end.created,),
    "lfu": lambda end: (end.uses, end.last_use),
    "slru": lambda end: (int(end.protected), end.serial),
    "priority": lambda end: (end.priority, end.last_use),
    "lru2": lambda end: tuple(end.references),
    "tlru": lambda end: (int(end.behind + end.size > TLRU_SPARED), end.last_use),
}
"""Policy name to rank: the evictable leaf with the lowest one goes first. A policy that is not here may name any."""

LRU2_GHOSTS = 1
"""Evicted nodes remembered for every cached one, by `lru2` as the tests set it."""
TLRU_SPARED = 2
"""Blocks at the end of a prompt that may go first, by `tlru` as the tests set it."""

COUNTERS = (
    "lookups",
    "query_tokens",
    "hit_tokens",
    "inserted_blocks",
    "evicted_blocks",
    "resumed_lookups",
    "resumed_query_tokens",
    "resumed_hit_tokens",
    "missed_short",
    "missed_cold",
    "missed_diverged",
    "missed_evicted",
)


class ModelCache:
    """A prefix cache by the contract. What a node is, whole leaf or single block, is the subclass's."""

    def __init__(self, block_size: int, policy: str = "lru", ghost_page: int = 2048) -> None:
        self.block_size = block_size
        self.policy = policy
        self.ghost_page = ghost_page
        self.root = End((None, ()), 0)
        self.forget()

    def forget(self) -> None:
        """Start empty."""
        self.ids: dict[Prefix, int] = {}
        self.ends: list[End] = []
        self.ghosts: list[Prefix] = []  # the page that is written on
        self.older_ghosts: list[Prefix] = []  # the full one before it
        self.remembered: dict[Prefix, int] = {}  # the last reference of what was evicted, by its first block
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.clock = 0
        self.serials = 0

    def new_ends(self, first: int, last: int) -> list[int]:
        """How many blocks lie before each node end that an insert of blocks first to last makes."""
        raise NotImplementedError

    # what is there

    def prefixes(self, namespace: str | None, tokens: Sequence[int], blocks: int) -> list[Prefix]:
        """The prefix of one block, of two, ... up to that many blocks."""
        return [(namespace, tuple(tokens[: i * self.block_size])) for i in range(1, blocks + 1)]

    def cached(self, namespace: str | None, tokens: Sequence[int], blocks: int) -> list[Prefix]:
        """Of those prefixes the leading ones that are cached."""
        found: list[Prefix] = []
        for prefix in self.prefixes(namespace, tokens, blocks):
            if prefix not in self.ids:
                break
            found.append(prefix)
        return found

    def searched(self, tokens: Sequence[int]) -> int:
        """How many tokens a match searches: full blocks, and the last token never."""
        return max(len(tokens) - 1, 0) // self.block_size * self.block_size

    def above(self, end: End) -> list[End]:
        """This end and every end on the way to it, shortest first."""
        return sorted((other for other in self.ends if other.starts(end)), key=len)

    def before(self, end: End) -> int:
        """How many tokens lie before the node that ends here."""
        return max((len(other) for other in self.above(end) if other is not end), default=0)

    def first_block(self, end: End) -> Prefix:
        """The prefix up to the end of the first block of the node that ends here."""
        namespace, tokens = end.prefix
        return namespace, tokens[: self.before(end) + self.block_size]

    def blocks_of(self, end: End) -> list[int]:
        """The ids of the node that ends here."""
        namespace, tokens = end.prefix
        skipped = self.before(end) // self.block_size
        return [self.ids[p] for p in self.prefixes(namespace, tokens, len(tokens) // self.block_size)[skipped:]]

    def is_locked(self, end: End) -> bool:
        """Whether a lock on this end or behind it holds the node."""
        return any(other.locks for other in self.ends if end.starts(other))

    def is_leaf(self, end: End) -> bool:
        """Whether nothing lies behind this end."""
        return not any(end.starts(other) for other in self.ends if other is not end)

    def holding(self, prefix: Prefix) -> End:
        """The end of the node that holds the block of this prefix: the shortest end at or behind it."""
        probe = End(prefix, 0)
        return min((end for end in self.ends if probe.starts(end)), key=len)

    @property
    def cached_blocks(self) -> int:
        return len(self.ids)

    @property
    def cached_tokens(self) -> int:
        return len(self.ids) * self.block_size

    @property
    def evictable_blocks(self) -> int:
        return sum(len(self.blocks_of(end)) for end in self.ends if not self.is_locked(end))

    @property
    def hit_rate(self) -> float:
        asked = self.counters["query_tokens"]
        return self.counters["hit_tokens"] / asked if asked else 0.0

    # the calls

    def match_length(self, tokens: Sequence[int], namespace: str | None = None) -> int:
        return self.probe(tokens, namespace)[0]

    def probe(self, tokens: Sequence[int], namespace: str | None = None) -> tuple[int, int]:
        """The matched tokens, and how many of their blocks no lock holds."""
        found = self.cached(namespace, tokens, self.searched(tokens) // self.block_size)
        unlocked = sum(not self.is_locked(self.holding(prefix)) for prefix in found)
        return len(found) * self.block_size, unlocked

    def match(self, tokens: Sequence[int], namespace: str | None = None, resumed: bool = False) -> Found:
        self.clock += 1
        searched = self.searched(tokens)
        found = self.cached(namespace, tokens, searched // self.block_size)
        matched = len(found) * self.block_size
        kind = "resumed_" if resumed else ""
        self.counters[kind + "lookups"] += 1
        self.counters[kind + "query_tokens"] += len(tokens)
        self.counters[kind + "hit_tokens"] += matched
        if not resumed:
            self.count_miss(searched, matched, (namespace, tuple(tokens[: matched + self.block_size])))
        end = self.end_at(found)
        for passed in self.above(end):
            passed.references = [passed.references[1], self.clock]
        self.use(end)
        return Found(matched, [self.ids[prefix] for prefix in found], end)

    def count_miss(self, searched: int, matched: int, diverging: Prefix) -> None:
        """Count why a lookup found less than it searched for."""
        if searched == 0:
            self.counters["missed_short"] += 1
        elif matched == searched:
            pass
        elif diverging in self.ghosts + self.older_ghosts:
            self.counters["missed_evicted"] += 1
        elif matched == 0:
            self.counters["missed_cold"] += 1
        else:
            self.counters["missed_diverged"] += 1

    def insert(
        self, tokens: Sequence[int], blocks: Sequence[int], namespace: str | None = None, priority: int = 0
    ) -> Added:
        full = len(tokens) // self.block_size
        if len(blocks) != full:
            raise Refusal("BlockCountError", expected=full, given=len(blocks))
        self.clock += 1
        path = self.prefixes(namespace, tokens, full)
        found = self.cached(namespace, tokens, full)
        duplicates = [given for given, prefix in zip(blocks, found, strict=False) if given != self.ids[prefix]]
        end = self.end_at(found)
        self.use(end)
        for passed in self.above(end):
            passed.priority = max(passed.priority, priority)
            passed.references[1] = self.clock
        for prefix, block in list(zip(path, blocks, strict=True))[len(found) :]:
            self.ids[prefix] = block
        for count in self.new_ends(len(found), full):
            end = End(path[count - 1], self.clock)
            end.priority = priority
            end.serial = self.next_serial()
            self.ends.append(end)
            end.references[0] = self.remembered.pop(self.first_block(end), 0)
            self.demote()
        for passed in self.above(end):
            passed.behind = max(passed.behind, full - len(passed) // self.block_size)
        self.counters["inserted_blocks"] += full - len(found)
        return Added(full - len(found), duplicates, end)

    def end_at(self, found: list[Prefix]) -> End:
        """The end at the last of these cached prefixes; a node that runs on behind it is split there."""
        if not found:
            return self.root
        lower = self.holding(found[-1])
        if lower.prefix == found[-1]:
            return lower
        upper = End(found[-1], lower.created)
        upper.last_use, upper.uses, upper.priority = lower.last_use, lower.uses, lower.priority
        upper.protected, upper.serial = lower.protected, lower.serial
        upper.references = list(lower.references)
        upper.behind = lower.behind + (len(lower) - len(upper)) // self.block_size
        self.ends.append(upper)
        return upper

    def use(self, end: End) -> None:
        """A use of every node on the way to this end, and of nothing else."""
        if end is self.root:
            return
        for used in reversed(self.above(end)):
            used.last_use = self.clock
            used.uses += 1
            used.protected, used.serial = True, self.next_serial()
        self.demote()

    def next_serial(self) -> int:
        self.serials += 1
        return self.serials

    def demote(self) -> None:
        """While more than 4/5 of the nodes are protected, the least recent of those goes back on probation."""
        while 5 * len(protected := [end for end in self.ends if end.protected]) > 4 * len(self.ends):
            oldest = min(protected, key=lambda end: end.serial)
            oldest.protected, oldest.serial = False, self.next_serial()

    def check_live(self, end: End) -> None:
        if end is not self.root and end not in self.ends:
            raise Refusal("StaleNodeError")

    def lock(self, end: End) -> None:
        self.check_live(end)
        if end is not self.root:
            end.locks += 1

    def unlock(self, end: End) -> None:
        self.check_live(end)
        if end is not self.root:
            if not end.locks:
                raise Refusal("LockError")
            end.locks -= 1

    def path_blocks(self, end: End) -> list[int]:
        self.check_live(end)
        namespace, tokens = end.prefix
        return [self.ids[prefix] for prefix in self.prefixes(namespace, tokens, len(tokens) // self.block_size)]

    def evict(self, n: int, told: Sequence[int] = ()) -> list[int]:
        """Evict by the policy's rule; where the model has none, the leaves whose ids come in `told`."""
        if n < 0:
            raise Refusal("SizeError", given=n)
        out: list[int] = []
        while len(out) < n:
            leaves = [end for end in self.ends if self.is_leaf(end) and not self.is_locked(end)]
            if not leaves:
                break
            for leaf in leaves:
                leaf.size = len(self.blocks_of(leaf))
            if self.policy in RANKS:
                victim = min(leaves, key=RANKS[self.policy])
            else:
                [victim] = [leaf for leaf in leaves if self.blocks_of(leaf)[0] == told[len(out)]]
            out += self.blocks_of(victim)
            self.remove(victim)
        self.counters["evicted_blocks"] += len(out)
        return out

    def remove(self, victim: End) -> None:
        """Take a leaf out, and remember its first block among the ghosts."""
        namespace, tokens = victim.prefix
        before = self.before(victim)
        ghost = self.first_block(victim)
        for prefix in self.prefixes(namespace, tokens, len(tokens) // self.block_size):
            if len(prefix[1]) > before:
                del self.ids[prefix]
        if ghost not in self.ghosts:
            self.ghosts.append(ghost)
        if len(self.ghosts) == self.ghost_page:
            self.older_ghosts, self.ghosts = self.ghosts, []
        self.ends.remove(victim)
        self.remembered = {other: last for other, last in self.remembered.items() if other != ghost}
        self.remembered[ghost] = victim.references[1]
        while len(self.remembered) > LRU2_GHOSTS * len(self.ends):
            del self.remembered[next(iter(self.remembered))]
        self.demote()

    def reset(self) -> list[int]:
        if any(end.locks for end in self.ends):
            raise Refusal("LockError")
        out = list(self.ids.values())
        self.forget()
        return out


class ModelRadix(ModelCache):
    """A node is a run of blocks: an insert makes one, and it goes out whole."""

    def new_ends(self, first: int, last: int) -> list[int]:
        return [last] if first < last else []


class ModelHash(ModelCache):
    """A node is one block: an insert makes as many as it has new blocks, and each goes out alone."""

    def new_ends(self, first: int, last: int) -> list[int]:
        return list(range(first + 1, last + 1))


MODELS: dict[str, type[ModelCache]] = {"radix": ModelRadix, "hash": ModelHash}


@dataclass
class ModelTable:
    """One request: its tokens, its blocks, and how far it is."""

    tokens: list[int]
    namespace: str | None
    priority: int
    state: str = "running"
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    matched: int = 0
    cached: int = 0
    end: End | None = None


class ModelManager:
    """A set of free ids, a list of requests, and a model cache or none.

    Which free id a request is given is the pool's own affair: a call that allocates answers how many ids it takes,
    and `give` hands in those that were taken.
    """

    def __init__(self, num_blocks: int, block_size: int, cache: ModelCache | None) -> None:
        self.num_blocks, self.block_size, self.cache = num_blocks, block_size, cache
        self.free = set(range(num_blocks))
        self.tables: list[ModelTable] = []
        self.counters = dict.fromkeys(("admitted", "resumed", "preempted", "finished"), 0)

    @property
    def running(self) -> list[ModelTable]:
        return [table for table in self.tables if table.state == "running"]

    def blocks_for(self, tokens: int) -> int:
        """How many blocks that many tokens fill, the last one maybe in part."""
        return -(-tokens // self.block_size)

    def shortage(self, tokens: Sequence[int], namespace: str | None) -> tuple[int, int]:
        """How many blocks an admission has to allocate, and how many it can get."""
        matched, unlocked = self.cache.probe(tokens, namespace) if self.cache else (0, 0)
        evictable = self.cache.evictable_blocks - unlocked if self.cache else 0
        return self.blocks_for(len(tokens)) - matched // self.block_size, len(self.free) + evictable

    def missing_blocks(self, tokens: Sequence[int], namespace: str | None = None) -> int:
        wanted, available = self.shortage(tokens, namespace)
        return max(0, wanted - available)

    def admit(self, tokens: Sequence[int], namespace: str | None = None, priority: int = 0) -> tuple[ModelTable, int]:
        """A running table that holds its cached blocks, and how many ids `give` has to hand it."""
        table = ModelTable(list(tokens), namespace, priority)
        wanted = self.start(table, resumed=False)
        self.tables.append(table)
        self.counters["admitted"] += 1
        return table, wanted

    def resume(self, table: ModelTable) -> int:
        """The preempted table runs again; how many ids `give` has to hand it."""
        self.check_state(table, "preempted")
        wanted = self.start(table, resumed=True)
        self.counters["resumed"] += 1
        return wanted

    def start(self, table: ModelTable, resumed: bool) -> int:
        wanted, available = self.shortage(table.tokens, table.namespace)
        if wanted > available:
            raise Refusal("OutOfBlocksError", wanted=wanted, available=available, missing=wanted - available)
        if self.cache:
            found = self.cache.match(table.tokens, table.namespace, resumed)
            self.cache.lock(found.end)
            table.end, table.blocks, table.matched = found.end, list(found.blocks), found.matched_tokens
        table.state, table.computed, table.cached = "running", table.matched, len(table.blocks)
        self.make_room(wanted)
        return wanted

    def make_room(self, wanted: int) -> None:
        """Let the cache shrink by what the free set is short of."""
        if self.cache and wanted > len(self.free):
            self.free.update(self.cache.evict(wanted - len(self.free)))

    def evict(self, n: int) -> int:
        """Let the cache shrink by that, if it can; by how much it did."""
        if n < 0:
            raise Refusal("SizeError", given=n)
        given_up = self.cache.evict(n) if self.cache else []
        self.free.update(given_up)
        return len(given_up)

    def give(self, table: ModelTable, ids: Sequence[int]) -> None:
        """Take these ids out of the free set for the table."""
        if not self.free.issuperset(ids) or len(set(ids)) != len(ids):
            raise AssertionError(f"{ids} are not all free and distinct: free are {sorted(self.free)}")
        self.free.difference_update(ids)
        table.blocks += ids

    def check_state(self, table: ModelTable, state: str) -> None:
        if table.state != state:
            raise Refusal("BlockTableError")

    def commit(self, table: ModelTable, computed: int) -> None:
        self.check_state(table, "running")
        if not table.computed <= computed <= len(table.tokens):
            raise Refusal("BlockTableError")
        table.computed = computed
        full = computed // self.block_size
        if self.cache is None or table.end is None or full == table.cached:
            return
        tokens = table.tokens[: full * self.block_size]
        added = self.cache.insert(tokens, table.blocks[:full], table.namespace, table.priority)
        self.free.update(added.duplicates)
        table.blocks[:full] = self.cache.path_blocks(added.end)
        self.cache.lock(added.end)
        self.cache.unlock(table.end)
        table.end, table.cached = added.end, full

    def grow(self, table: ModelTable, tokens: Sequence[int]) -> int:
        """The table is longer; how many ids `give` has to hand it."""
        self.check_state(table, "running")
        wanted = self.blocks_for(len(table.tokens) + len(tokens)) - len(table.blocks)
        available = len(self.free) + (self.cache.evictable_blocks if self.cache else 0)
        if wanted > available:
            raise Refusal("OutOfBlocksError", wanted=wanted, available=available, missing=wanted - available)
        table.tokens += tokens
        self.make_room(wanted)
        return wanted

    def finish(self, table: ModelTable) -> None:
        self.check_state(table, "running")
        self.stop(table, "finished")

    def preempt(self, table: ModelTable) -> None:
        self.check_state(table, "running")
        self.stop(table, "preempted")

    def stop(self, table: ModelTable, state: str) -> None:
        self.free.update(table.blocks[table.cached :])
        if self.cache and table.end:
            self.cache.unlock(table.end)
        table.state, table.end, table.blocks, table.cached = state, None, [], 0
        table.computed = 0
        self.counters[state] += 1
