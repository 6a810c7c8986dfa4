"""A brute-force model of the waiting queue: one flat list, everything asked anew each time, skips counted one by one.

It shares nothing with `radixkv.scheduler`. Blocks, recency and evictions are those of `tests.model.ModelManager`.
Where an order leaves a choice open (`dfs-weight` between branches of the same weight) the model tells which requests
may come next, and goes on with the one that the code took.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.model import End, ModelManager, ModelTable, Refusal


@dataclass(eq=False)
class ModelRequest:
    """One request, wherever it is."""

    name: int
    tokens: list[int]
    namespace: str | None
    priority: int
    arrival: int
    state: str = "waiting"  # waiting, running, back (put back), gone
    skips: int = 0
    table: ModelTable | None = None
    prompt: list[int] = field(default_factory=list)  # its tokens when it was last started
    leader: "ModelRequest | None" = None  # the running one that it waits for, as long as that is known

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state} {self.tokens} {self.namespace}>"


class ModelQueue:
    """The queue by its contract."""

    def __init__(self, manager: ModelManager, order: str, max_skips: int, look_past: int, share_tokens: int) -> None:
        self.manager, self.order, self.max_skips = manager, order, max_skips
        self.look_past, self.share_tokens = look_past, share_tokens
        self.requests: list[ModelRequest] = []
        self.put_back: list[ModelRequest] = []  # the one put back last is the last
        self.begun: tuple[str | None, tuple[int, ...]] = None, ()  # dfs-weight: what was started last

    # what is where

    @property
    def waiting(self) -> list[ModelRequest]:
        """Those that were never started, in order of arrival."""
        return [request for request in self.requests if request.state == "waiting"]

    def full(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens of the full blocks."""
        size = self.manager.block_size
        return tuple(tokens[: len(tokens) // size * size])

    def matched(self, request: ModelRequest) -> int:
        """How many tokens of the prompt a match finds now."""
        return self.manager.cache.match_length(request.tokens, request.namespace) if self.manager.cache else 0

    def to_come(self, request: ModelRequest, running: ModelRequest) -> int:
        """How many tokens the running one will cache for the other that are not cached yet."""
        if self.manager.cache is None or request.namespace != running.namespace:
            return 0
        same = agreeing([self.full(request.tokens[:-1]), self.full(running.prompt)])
        return len(self.full(request.tokens[:same])) - self.matched(request)

    def leaders_of(self, request: ModelRequest) -> list[ModelRequest]:
        """The running requests that it should wait for one of: enough is to come from each, and none has more."""
        to_come = {running: self.to_come(request, running) for running in self.requests if running.state == "running"}
        most = max(to_come.values(), default=0)
        return [running for running, tokens in to_come.items() if tokens == most >= self.share_tokens]

    # orders

    def may_be_next(self, among: list[ModelRequest]) -> list[ModelRequest]:
        """Those of `among` that the order may take now."""
        if not among or self.order == "dfs-weight":
            return self.depth_first(among)
        if self.order == "fcfs":
            return [min(among, key=lambda r: r.arrival)]
        return [min(among, key=lambda r: (-self.matched(r), len(r.tokens), r.arrival))]

    def depth_first(self, among: list[ModelRequest]) -> list[ModelRequest]:
        """Go as far down the branch begun last as any prompt goes along, then the heaviest way down."""
        size = self.manager.block_size
        namespace, tokens = self.begun
        below = among
        for end in range(size, len(tokens) + 1, size):
            along = [r for r in among if r.namespace == namespace and self.full(r.tokens)[:end] == tokens[:end]]
            below = along or below
            if not along:
                break
        return self.down(below)

    def down(self, below: list[ModelRequest]) -> list[ModelRequest]:
        """Of prompts that agree as far as any of them was looked at: those that may come first."""
        if not below:
            return []
        depth = self.agreement(below)
        here = [r for r in below if len(self.full(r.tokens)) == depth]
        if here:
            return [min(here, key=lambda r: (len(r.tokens), r.arrival))]
        branches: dict[tuple[str | None, tuple[int, ...]], list[ModelRequest]] = {}
        for request in below:
            branch = (request.namespace, self.full(request.tokens)[: depth + self.manager.block_size])
            branches.setdefault(branch, []).append(request)
        heaviest = max(map(len, branches.values()))
        return [r for branch in branches.values() if len(branch) == heaviest for r in self.down(branch)]

    def agreement(self, below: list[ModelRequest]) -> int:
        """How many tokens of full blocks all of them share; none if they are of several namespaces."""
        if len({r.namespace for r in below if self.full(r.tokens)}) > 1 or not all(self.full(r.tokens) for r in below):
            return 0
        keys = [self.full(r.tokens) for r in below]
        return len(self.full(keys[0][: agreeing(keys)]))

    # calls

    def add(self, name: int, tokens: list[int], namespace: str | None, priority: int) -> ModelRequest:
        request = ModelRequest(name, tokens, namespace, priority, arrival=len(self.requests))
        self.requests.append(request)
        return request

    def cancel(self, request: ModelRequest) -> bool:
        if request.state not in {"waiting", "back"}:
            return False
        if request.state == "back":
            self.put_back.remove(request)
        request.state, request.leader = "gone", None
        return True

    def preempt(self, request: ModelRequest) -> None:
        assert request.table is not None
        self.manager.preempt(request.table)
        request.state = "back"
        self.put_back.append(request)

    def finish(self, request: ModelRequest) -> None:
        assert request.table is not None
        self.manager.finish(request.table)
        request.state = "gone"

    def admit(self, looked_at: Mapping[int, int | None], give: Callable[[int], list[int]]) -> ModelRequest | None:
        """Who is admitted. `looked_at` are the names that the code took out of its order, in turn; each is checked.

        With each comes the name of the running request that it waits for now, if any. `give` hands over the last n ids
        of the table that the code made.
        """
        for request in self.waiting:
            leader = request.leader
            if leader and (leader.state != "running" or self.to_come(request, leader) < self.share_tokens):
                request.leader = None
        waiting = self.waiting
        if self.put_back:
            assert not looked_at
            return self.resume(give)
        if waiting and waiting[0].skips >= self.max_skips:
            assert not looked_at
            return waiting[0] if self.start(waiting[0], give) else None
        by_name = {request.name: request for request in waiting}
        in_order = [request for request in waiting if request.leader is None]
        past: list[tuple[ModelRequest, End | None]] = []
        admitted = None
        for name, followed in looked_at.items():
            assert admitted is None, "it went on after an admission"
            assert len(past) < self.look_past
            request = by_name[name]
            assert request in self.may_be_next(in_order), (request, self.may_be_next(in_order))
            in_order.remove(request)
            if leaders := self.leaders_of(request):
                request.leader = next(leader for leader in leaders if leader.name == followed)
            elif self.start(request, give):
                admitted = request
                self.begun = request.namespace, self.full(request.tokens)
            else:
                past.append((request, self.protect(request)))
        assert admitted or not in_order or len(past) == self.look_past, "it gave up too early"
        for _, end in past:
            if end and self.manager.cache:
                self.manager.cache.unlock(end)
        return admitted

    def protect(self, request: ModelRequest) -> End | None:
        """Lock the node that holds the end of what is cached of the prompt."""
        cache, matched = self.manager.cache, self.matched(request)
        if not cache or not matched:
            return None
        end = cache.holding((request.namespace, tuple(request.tokens[:matched])))
        cache.lock(end)
        return end

    def resume(self, give: Callable[[int], list[int]]) -> ModelRequest | None:
        request = self.put_back[-1]
        assert request.table is not None
        try:
            wanted = self.manager.resume(request.table)
        except Refusal:
            return None
        self.manager.give(request.table, give(wanted))
        self.put_back.pop()
        self.runs(request, request.table)
        return request

    def start(self, request: ModelRequest, give: Callable[[int], list[int]]) -> bool:
        """Admit it if it fits; then all that wait and came before it were passed over once more."""
        try:
            table, wanted = self.manager.admit(request.tokens, request.namespace, request.priority)
        except Refusal:
            return False
        self.manager.give(table, give(wanted))
        self.runs(request, table)
        for other in self.waiting:
            if other.arrival < request.arrival:
                other.skips += 1
                assert other.skips <= self.max_skips, f"{other} was passed over {other.skips} times"
        return True

    def runs(self, request: ModelRequest, table: ModelTable) -> None:
        request.table, request.state, request.leader = table, "running", None
        request.prompt = list(table.tokens)


def agreeing(keys: Sequence[tuple[int, ...]]) -> int:
    """How many leading tokens all of them share."""
    depth = 0
    while all(len(key) > depth for key in keys) and len({key[depth] for key in keys}) == 1:
        depth += 1
    return depth
