"""What an operator looks at: `/health`, `/metrics`, `/cache` and its reset, and what is logged."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from radixkv import BlockManager
from radixkv.engine import EngineConfig, EngineSnapshot
from radixkv.server import cache_view
from radixkv.server.metrics import CacheTimes, Metrics
from tests.server.conftest import Running
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import until

SECRET = "the quick brown fox"


def samples(server: Running) -> dict[str, float]:
    """Every sample of `/metrics` by name and labels."""
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_health(server: Running) -> None:
    """Ready, as it is."""
    response = server.http.get("/health")

    assert (200, {"status": "ready"}) == (response.status_code, response.json())


def test_metrics_count_what_happened(start: Any) -> None:
    """Lookups, tokens, blocks, times: each where its name says."""
    server: Running = start()
    server.complete(prompt=[40, 41, 42, 43, 44], max_tokens=3)
    server.complete(prompt=[40, 41, 42, 43, 44], max_tokens=3)
    found = samples(server)

    expected = {
        "radixkv_lookups_total": 2,
        "radixkv_query_tokens_total": 10,
        "radixkv_hit_tokens_total": 4,
        "radixkv_misses_total cause=cold": 1,
        "radixkv_admitted_requests_total": 2,
        "radixkv_inserted_blocks_total": 1,
        "radixkv_prompt_tokens_total": 10,
        "radixkv_cached_prompt_tokens_total": 4,
        "radixkv_generated_tokens_total": 6,
        "radixkv_requests_total reason=length": 2,
        "radixkv_time_to_first_token_seconds_count": 2,
        "radixkv_time_per_output_token_seconds_count": 2,
        "radixkv_queue_time_seconds_count": 2,
        "radixkv_request_time_seconds_count": 2,
        "radixkv_responses_total endpoint=completions status=200": 2,
        "radixkv_blocks": 64,
        "radixkv_used_blocks": 1,
        "radixkv_evictable_blocks": 1,
        "radixkv_locked_blocks": 0,
        "radixkv_waiting_requests": 0,
        "radixkv_running_requests": 0,
    }
    assert expected == {name: found.get(name) for name in expected}


def test_metrics_in_openmetrics_form(server: Running) -> None:
    """For who asks for that."""
    response = server.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})

    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


def test_counters_go_on_over_a_reset(start: Any) -> None:
    """After `POST /cache/reset` the cache is empty, and no counter has gone down."""
    server: Running = start()
    server.complete(prompt=[40, 41, 42, 43, 44])
    before = samples(server)

    response = server.http.post("/cache/reset")

    assert {"freed_blocks": 1} == response.json()
    assert 0 == samples(server)["radixkv_used_blocks"]
    server.complete(prompt=[40, 41, 42, 43, 44])
    after = samples(server)
    assert 2 == after["radixkv_lookups_total"]
    assert 0 == after["radixkv_hit_tokens_total"]
    counters = [name for name in before if "_total" in name]
    assert all(before[name] <= after[name] for name in counters)


def test_a_snapshot_from_before_a_reset_counts_nothing_twice() -> None:
    """The engine publishes its snapshot after a step: the old one may be read when the cache is empty already."""
    manager = BlockManager(8, 2)
    published: list[EngineSnapshot] = []

    def publish() -> None:
        published.append(EngineSnapshot(stats=manager.stats))

    metrics = Metrics(lambda: published[-1])

    def lookups() -> float | None:
        return metrics.registry.get_sample_value("radixkv_lookups_total")

    table = manager.admit([1, 2, 3])
    publish()
    assert 1 == lookups()
    manager.finish(table)
    manager.finish(manager.admit([1, 2, 3]))  # a lookup that no snapshot has seen
    with metrics.engine.reset(manager):
        manager.reset()

    assert 2 == lookups()
    publish()
    assert 2 == lookups()
    manager.finish(manager.admit([1, 2, 3]))
    publish()
    assert 3 == lookups()


def test_a_failed_reset_changes_no_counter() -> None:
    """A reset that is refused is as if it had not been asked for."""
    manager = BlockManager(8, 2)
    metrics = Metrics(lambda: EngineSnapshot(stats=manager.stats))
    table = manager.admit([1, 2, 3])
    manager.commit(table, 3)
    with pytest.raises(Exception, match="locked"), metrics.engine.reset(manager):
        manager.reset()

    assert 1 == metrics.registry.get_sample_value("radixkv_lookups_total")


def test_a_reset_behind_the_servers_back_keeps_what_was_seen() -> None:
    """Counters never go down, whoever resets the cache."""
    manager = BlockManager(8, 2)
    metrics = Metrics(lambda: EngineSnapshot(stats=manager.stats))
    manager.finish(manager.admit([1, 2, 3]))
    assert 1 == metrics.registry.get_sample_value("radixkv_lookups_total")
    manager.reset()

    assert 1 == metrics.registry.get_sample_value("radixkv_lookups_total")


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_the_times_of_blocks(kind: str) -> None:
    """By hand, each block counted: 1 and 2 come at 100 s, 3 at 102 s; a lookup hits 1 and 2 at 110 s.

    At 130 s another prompt takes the block of 3, at 150 s one takes the last two. What a reset forgets is not counted.
    """
    now = 100.0
    manager, registry = BlockManager(4, 1, prefix_cache=kind), CollectorRegistry()
    times = CacheTimes(4, lambda: now)
    registry.register(times)
    assert manager.cache is not None
    manager.cache.observe(times)
    table = manager.admit([1, 2, 3, 4])
    manager.commit(table, 2)
    now = 102
    manager.commit(table, 3)
    manager.finish(table)
    now = 110
    manager.finish(manager.admit([1, 2, 9]))
    now = 130
    table = manager.admit([7, 8])
    manager.commit(table, 2)
    manager.finish(table)
    now = 150
    manager.finish(manager.admit([5, 6, 5, 6]))
    manager.reset()

    def histogram(name: str) -> tuple[float | None, float | None, list[float]]:
        sample = registry.get_sample_value
        buckets = [sample(f"radixkv_{name}_seconds_bucket", {"le": le}) or 0 for le in ("5.0", "15.0", "60.0", "+Inf")]
        return sample(f"radixkv_{name}_seconds_count"), sample(f"radixkv_{name}_seconds_sum"), buckets

    # 7 and 8 live for 20 s, all of it idle; 3 for 28 s, idle too; 1 and 2 for 50 s, 40 s of it idle
    assert (5, 28 + 2 * 20 + 2 * 50, [0, 0, 5, 5]) == histogram("block_lifetime")
    assert (5, 28 + 2 * 20 + 2 * 40, [0, 0, 5, 5]) == histogram("block_idle_before_eviction")
    assert (2, 8 + 8, [0, 2, 2, 2]) == histogram("block_reuse_gap")


def test_no_times_of_blocks_without_a_cache(tokenizer: Any) -> None:
    """A histogram that is always empty would say that nothing is ever evicted."""
    engine: Any = FakeEngine(tokenizer, EngineConfig(num_blocks=4, prefix_cache="none"))
    metrics = Metrics(engine.snapshot)
    metrics.observe(engine)

    assert metrics.registry.get_sample_value("radixkv_block_lifetime_seconds_count") is None
    assert 0 == metrics.registry.get_sample_value("radixkv_lookups_total")


def test_a_reset_while_something_is_locked(start: Any) -> None:
    """409, and nothing changed."""
    server: Running = start()
    server.complete(prompt=[40, 41, 42, 43, 44])
    node = server.engine.call(_pin).result(10)

    response = server.http.post("/cache/reset")

    assert (409, "cache_locked") == (response.status_code, response.json()["error"]["code"])
    assert 1 == response.headers["retry-after"].count("1")
    server.engine.call(lambda manager: cast("Any", manager.cache).unlock(node)).result(10)
    assert 200 == server.http.post("/cache/reset").status_code


def _pin(manager: BlockManager) -> Any:
    cache: Any = manager.cache
    node = cache.match_prefix([40, 41, 42, 43, 44]).node
    cache.lock(node)
    return node


def test_cache_shows_sizes_and_no_text(start: Any) -> None:
    """Prefixes are numbers of tokens; neither words nor token numbers get out."""
    server: Running = start()
    server.complete(prompt=SECRET, max_tokens=2)
    response = server.http.get("/cache?tree=1")
    view = response.json()

    assert ("radix", 4, 64) == (view["prefix_cache"], view["block_size"], view["blocks"]["total"])
    assert view["blocks"]["cached"] * 4 == view["cached_tokens"] == view["prefixes"][0]["tokens"]
    assert {"tokens", "own_tokens", "branches", "locks", "age"} == set(view["prefixes"][0])
    assert "tokens cached" in view["tree"]
    tokens = server.engine.submitted[0].prompt
    assert not any(word in response.text for word in SECRET.split())
    assert " ".join(map(str, tokens[:3])) not in response.text
    assert "tree" not in server.http.get("/cache").json()


def test_cache_shows_text_when_told_to(start: Any) -> None:
    """With `--show-text`, and then alone."""
    server: Running = start(show_text=True)
    server.complete(prompt=SECRET, max_tokens=2)
    view = server.http.get("/cache?tree=1").json()

    assert view["prefixes"][0]["text"].startswith(SECRET[:10])
    assert SECRET[:10] in view["tree"]


def test_prefixes_and_tree_of_a_forked_cache() -> None:
    """By hand: one beginning, two ends, and a prompt of its own; the newest first."""
    manager = BlockManager(32, 2)
    for prompt in ([1, 2, 3, 4, 5, 6, 0], [1, 2, 7, 8, 0], [9, 9, 0]):
        table = manager.admit(prompt)
        manager.commit(table, len(prompt))
        manager.finish(table)
    view = cache_view.view(manager, decode=None, tree=True)

    assert [(2, 2, 0), (2, 2, 2), (4, 2, 0), (6, 4, 0)] == [
        (entry["tokens"], entry["own_tokens"], entry["branches"]) for entry in view["prefixes"]
    ]
    expected = """\
4 nodes, 10 tokens cached
├─ 2 tokens, age 0
└─ 2 tokens, age 2
   ├─ 2 tokens, age 2
   └─ 4 tokens, age 4"""
    assert expected == view["tree"]


def test_invariants_are_checked_on_demand() -> None:
    """They hold, or the answer says what does not."""
    manager = BlockManager(8, 2)
    sound = cache_view.view(manager, decode=None, check=True)
    manager.pool.allocate(1)
    broken = cache_view.view(manager, decode=None, check=True)

    assert "hold" == sound["invariants"]
    assert broken["invariants"].startswith("broken: block 0")


def test_a_wide_tree_is_cut() -> None:
    """The newest branches are drawn, the rest counted."""
    manager = BlockManager(64, 1)
    for first in range(30):
        table = manager.admit([first, 0])
        manager.commit(table, 2)
        manager.finish(table)
    view = cache_view.view(manager, decode=None, tree=True)

    assert "└─ … 22 more" == view["tree"].splitlines()[-1]
    assert cache_view.PREFIXES_SHOWN == len(view["prefixes"])


@pytest.mark.parametrize("kind", ["hash", "none"])
def test_other_caches_have_no_tree(kind: str) -> None:
    """Sizes alone."""
    manager = BlockManager(8, 2, prefix_cache=kind)
    manager.finish(manager.admit([1, 2, 3]))
    view = cache_view.view(manager, decode=None, tree=True)

    assert (None, None) == (view["prefixes"], view["tree"])
    assert 0 == manager.reset()


def test_no_prompt_in_the_log(start: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error is answered and logged by its place; its message, which may quote a prompt, is not."""
    server: Running = start()

    def broken(prompt: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"cannot do {SECRET}")

    monkeypatch.setattr(server.engine, "submit", broken)
    with caplog.at_level(logging.DEBUG, logger="radixkv"):
        response = server.complete(prompt=SECRET)

    assert (500, "internal_error") == (response.status_code, response.json()["error"]["code"])

    def logged() -> str:
        return "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("radixkv"))

    until(lambda: "RuntimeError" in logged())
    assert SECRET not in logged()
    assert SECRET not in response.text
    assert 0 == server.state.calls


def test_no_metrics_of_an_engine_that_is_not_there() -> None:
    """Before the model is loaded there is nothing to count."""
    metrics = Metrics(lambda: None)

    assert metrics.registry.get_sample_value("radixkv_lookups_total") is None
    manager = SimpleNamespace(stats=BlockManager(1, 1).stats)
    with metrics.engine.reset(cast("BlockManager", manager)):
        pass
