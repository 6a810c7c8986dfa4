"""The waiting queue: what a step's ordering costs with 10,000 waiting, and what the bound on waiting costs.

    python -m benchmarks.scheduler            a few minutes
    python -m benchmarks.scheduler --quick    a sanity check

The first table: a step in which one request is prefilled and cached, another finishes, blocks are evicted, a request
comes and one is admitted, all of it timed, the manager's own work too, as a share of asking the cache `match_length` of
every waiting request, in the same run. In the rows called churn a prompt is cached 16 steps late: some fifty requests
begin or end to wait for another one at each step, more than any engine brings about.

The others: a simulated engine, for every order and bound, where nobody reads a clock: hot groups and cold requests, in
waves that it can work off and in waves that it cannot, and groups that come all at once, shuffled.
"""

import argparse
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from gc import freeze
from itertools import count
from random import Random
from time import perf_counter
from typing import Final

from benchmarks.measure import Verdict, micros, no_gc, number, percentile, table
from radixkv import BlockManager, BlockTable, OutOfBlocksError, TokenKey
from radixkv.scheduler import ORDERS, WaitingQueue

BLOCK_SIZE: Final = 16
TARGET: Final = 0.1
UNBOUNDED: Final = 10**9


def draw(random: Random, tokens: int) -> list[int]:
    """Tokens that nobody else has."""
    return [random.randrange(2, 2**17) for _ in range(tokens)]


# --- the cost of a step -----------------------------------------------------------------------------------------------


class Crowd:
    """Requests of 200 groups wait: 512 tokens of the group, 128 to 512 of their own."""

    def __init__(self, prefix_cache: str, order: str, waiting: int, *, churn: bool = False) -> None:
        self.churn = churn
        self.random = Random(1)
        self.manager = BlockManager(4096, BLOCK_SIZE, prefix_cache=prefix_cache)
        self.queue = WaitingQueue[int](self.manager, order=order, max_skips=UNBOUNDED)
        self.groups = [draw(self.random, 512) for _ in range(200)]
        self.names = count()
        self.keys: dict[int, TokenKey] = {}
        self.running: deque[BlockTable] = deque()
        for _ in range(waiting):
            self.add(self.new_key())
        for _ in range(200):
            self.step(self.new_key())

    def new_key(self) -> TokenKey:
        return TokenKey([*self.random.choice(self.groups), *draw(self.random, self.random.randrange(128, 512))])

    def add(self, key: TokenKey) -> None:
        name = next(self.names)
        self.keys[name] = key
        self.queue.add(name, key)

    def step(self, key: TokenKey) -> None:
        """The one admitted last is prefilled, the first is done, some blocks go, one comes, one is admitted."""
        manager = self.manager
        if self.running and not self.churn:
            manager.commit(self.running[-1], self.running[-1].num_tokens)
        if len(self.running) >= 16:
            done = self.running.popleft()
            manager.commit(done, done.num_tokens)
            manager.finish(done)
        if manager.cache:
            manager.pool.reclaim(manager.cache.evict(24))
        self.add(key)
        if admitted := self.queue.admit():
            name, started = admitted
            del self.keys[name]
            self.running.append(started)

    def scan(self) -> int:
        """What an order without memory has to do before each admission."""
        cache = self.manager.cache
        return sum(map(cache.match_length, self.keys.values())) if cache else 0


def step_costs(waiting: int, steps: int) -> list[tuple[str, str, float, float, float]]:
    """Cache, order, and seconds: of a step, of the slowest step in a hundred, of a scan."""
    rows = []
    for prefix_cache, churn in (("radix", False), ("hash", False), ("radix", True), ("hash", True)):
        for order in sorted(ORDERS):
            crowd = Crowd(prefix_cache, order, waiting, churn=churn)
            keys = [crowd.new_key() for _ in range(steps)]
            crowd.scan()  # the keys' hashes are worked out once, by either
            freeze()
            step_times, scan_times = [], []
            with no_gc():
                for i, key in enumerate(keys):
                    start = perf_counter()
                    crowd.step(key)
                    step_times.append(perf_counter() - start)
                    if i % (steps // 10) == 0:
                        start = perf_counter()
                        crowd.scan()
                        scan_times.append(perf_counter() - start)
            rows.append(
                (
                    prefix_cache,
                    order + (", churn" if churn else ""),
                    statistics.fmean(step_times),
                    percentile(step_times, 0.99),
                    statistics.median(scan_times),
                )
            )
    return rows


# --- the bound --------------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """A request of the simulation."""

    key: TokenKey
    outputs: int
    cold: bool
    came: int
    skips: int = 0
    waited: int = 0
    table: BlockTable | None = None

    def __hash__(self) -> int:
        return id(self)


@dataclass
class Outcome:
    """What became of a workload."""

    hit_rate: float
    steps: int
    worst_skips: int
    hot: list[int] = field(default_factory=list)
    cold: list[int] = field(default_factory=list)


def waves(high: float, low: float, requests: int) -> list[Client]:
    """Four of five share 512 tokens with their group, of 24, few of them popular; one of five shares nothing.

    400 come at the high rate, a step, and 400 at the low one.
    """
    random = Random(3)
    groups = [draw(random, 512) for _ in range(24)]
    clients, step = [], 0.0
    for i in range(requests):
        cold = random.random() < 0.2
        prefix = draw(random, 512) if cold else random.choices(groups, [1 / (rank + 1) for rank in range(24)])[0]
        key = TokenKey([*prefix, *draw(random, random.randrange(16, 256))])
        step += random.expovariate(low if i // 400 % 2 else high)
        clients.append(Client(key, random.randrange(8, 64), cold, int(step)))
    return clients


def shuffled(requests: int) -> list[Client]:
    """Groups of 16 share 512 tokens each; all come at once, in no order. `cold` is the first of each group to come."""
    random = Random(4)
    groups = [draw(random, 512) for _ in range(requests // 16)]
    choice = [number for number in range(len(groups)) for _ in range(16)]
    random.shuffle(choice)
    return [
        Client(
            TokenKey([*groups[number], *draw(random, random.randrange(16, 256))]),
            random.randrange(8, 64),
            number not in choice[:i],
            0,
        )
        for i, number in enumerate(choice)
    ]


def best_hit_rate(clients: Sequence[Client]) -> float:
    """That of a cache that forgets nothing: each block is computed once."""
    seen: set[bytes] = set()
    asked = hits = 0
    for client in clients:
        stride = BLOCK_SIZE * 4
        ends = range(stride, len(client.key.data), stride)  # the last token is never covered
        blocks = [client.key.data[:end] for end in ends]
        hits += BLOCK_SIZE * sum(block in seen for block in blocks)
        asked += len(client.key)
        seen.update(blocks)
    return hits / asked


class Engine:
    """Steps of 512 tokens, decodes first, at most 32 running, and blocks for 9 of the 24 groups besides them."""

    BUDGET: Final = 512
    MAX_RUNNING: Final = 32

    def __init__(self, clients: Sequence[Client], order: str, max_skips: int) -> None:
        self.manager = BlockManager(1300, BLOCK_SIZE)
        self.queue = WaitingQueue[Client](self.manager, order=order, max_skips=max_skips)
        self.to_come = deque(clients)
        self.waiting: dict[Client, None] = {}
        self.running: list[Client] = []
        self.random = Random(7)
        self.now = 0

    def run(self) -> Outcome:
        done: list[Client] = []
        while self.to_come or len(self.queue) or self.running:
            while self.to_come and self.to_come[0].came <= self.now:
                client = self.to_come.popleft()
                self.waiting[client] = None
                self.queue.add(client, client.key)
            done += self.step()
            self.now += 1
        assert self.manager.cache
        outcome = Outcome(self.manager.cache.hit_rate, self.now, max(client.skips for client in done))
        for client in done:
            (outcome.cold if client.cold else outcome.hot).append(client.waited)
        return outcome

    def step(self) -> Iterator[Client]:
        """Tokens are computed in order of admission; who has the whole prompt decodes one."""
        budget = self.BUDGET
        for client in list(self.running):
            budget = self.compute(client, budget)
        while budget > 0 and len(self.running) < self.MAX_RUNNING and (admitted := self.queue.admit()):
            client, client.table = admitted
            self.running.append(client)
            if client in self.waiting:
                self.passed(client)
            budget = self.compute(client, budget)
        done = [client for client in self.running if client.table and client.table.num_tokens > self.length(client)]
        for client in done:
            assert client.table
            self.manager.finish(client.table)
            self.running.remove(client)
        return iter(done)

    def length(self, client: Client) -> int:
        return len(client.key) + client.outputs

    def passed(self, client: Client) -> None:
        client.waited = self.now - client.came
        for other in self.waiting:  # in order of arrival
            if other is client:
                break
            other.skips += 1
        del self.waiting[client]

    def compute(self, client: Client, budget: int) -> int:
        started = client.table
        if started is None or client not in self.running or budget <= 0:
            return budget
        chunk = min(started.num_tokens - started.computed_tokens, budget)
        self.manager.commit(started, started.computed_tokens + chunk)
        while client in self.running and started.computed_tokens == started.num_tokens:
            try:
                self.manager.grow(started, [self.random.randrange(2, 2**17)])
            except OutOfBlocksError:
                youngest = self.running.pop()
                assert youngest.table
                self.manager.preempt(youngest.table)
                self.queue.put_back(youngest, youngest.table)
        return budget - chunk


def bounds(make: Callable[[], list[Client]]) -> list[tuple[str, int, Outcome]]:
    """Every order with every bound, on the same requests. fcfs passes over nobody here: all fit."""
    rows = []
    for order in ("lpm", "dfs-weight", "fcfs"):
        for max_skips in (0, 4, 16, 64, 256, 1024, UNBOUNDED) if order != "fcfs" else (UNBOUNDED,):
            rows.append((order, max_skips, Engine(make(), order, max_skips).run()))
            progress(f"simulated {order} with max_skips={max_skips}")
    return rows


def bounds_table(title: str, outcomes: Sequence[tuple[str, int, Outcome]], best: float) -> str:
    return table(
        title,
        [
            "order, max_skips",
            "hit rate",
            "of best",
            "steps",
            "mean wait",
            "p99",
            "cold mean",
            "cold worst",
            "most skips",
        ],
        [
            [
                f"{order}, {'unbounded' if bound == UNBOUNDED else bound}",
                f"{outcome.hit_rate:.3f}",
                f"{outcome.hit_rate / best:.1%}",
                str(outcome.steps),
                number(statistics.fmean(outcome.hot + outcome.cold)),
                str(percentile(outcome.hot + outcome.cold, 0.99)),
                number(statistics.fmean(outcome.cold)),
                str(max(outcome.cold)),
                str(outcome.worst_skips),
            ]
            for order, bound, outcome in outcomes
        ],
    )


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: to see that it runs")
    quick = parser.parse_args(arguments).quick
    waiting, steps, requests = (1000, 100, 200) if quick else (10_000, 500, 2400)
    costs = step_costs(waiting, steps)
    print(
        table(
            f"A step's ordering, {waiting:,} waiting",
            ["cache, order", "step µs", "p99 µs", "scan µs", "step / scan"],
            [
                [f"{cache}, {order}", micros(step), micros(slow), micros(scan), f"{step / scan:.4f}"]
                for cache, order, step, slow, scan in costs
            ],
        )
    )
    print()
    outcomes = []
    loads: list[tuple[str, Callable[[], list[Client]]]] = [
        (f"{requests:,} requests in waves, mostly worked off", lambda: waves(1.6, 0.5, requests)),
        (f"{requests:,} requests in waves, more than can be worked off", lambda: waves(2.4, 0.9, requests)),
        (f"{requests // 4:,} requests at once, shuffled groups of 16", lambda: shuffled(requests // 4)),
    ]
    for title, make in loads:
        found, best = bounds(make), best_hit_rate(make())
        outcomes += found
        print(bounds_table(f"{title}; waits in engine steps", found, best))
        print()
    worst = max(step / scan for _, _, step, _, scan in costs)
    verdicts = [Verdict.at_most("a step's ordering / match_length of all", worst, 1 if quick else TARGET)]
    over = max(outcome.worst_skips / max(bound, 1) for _, bound, outcome in outcomes)
    verdicts.append(Verdict.at_most("most skips / max_skips, over all simulations", over, 1))
    for verdict in verdicts:
        print(f"{verdict}: {verdict.what} {number(verdict.measured)} ({verdict.bound})")
    return 0 if all(verdict.ok for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
