"""The overview's document: what each viewer sees, windows, and changes."""

import json
import time
from typing import Any

import pytest

from gateway.console.overview import (
    MIN_INTERVAL_S,
    NOTHING,
    Overview,
    OverviewFeed,
    RowWindow,
    event,
)
from gateway.console.traffic import LastMinute, Traffic
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.recent_requests import RecentRequests
from registry.domain.cluster import ChangeApplier, ClusterState
from registry.domain.demand import Band, ExpectedRates
from registry.domain.model import ModelName, ModelRecord, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from registry.domain.records import ActionOutcome, ActionRecord
from registry.redis.watch import ClusterWatch


class Copy:
    """A gateway's copy of a cluster, as the console reads it."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.recent = RecentRequests()

    def age_s(self) -> float:
        return 0.0

    def registry_now_s(self) -> float:
        return 100.0

    def declare(self, namespace: str, name: str, **tiers: Tier) -> None:
        spec = ModelSpec(ModelName(namespace, name), f"file:///{name}")
        self.state.models[spec.name] = ModelRecord(spec)
        self.state.models_version += 1
        for pod, tier in tiers.items():
            self.state.residency.put(spec.key, pod, Residency(tier, None, 0.0, 100))

    def overview(self, *requested: str) -> Overview:
        """After requests to models."""
        watch: Any = self
        metrics = GatewayMetrics()
        for model in requested:
            metrics.outcomes.add((model, "auto", "warm", "warm", 200))
        traffic = Traffic(metrics, lambda _: (0, 0.0, 0.0, 0.0))
        traffic.sample(time.time())
        missed = LastMinute(self.recent, self.state)
        return Overview(_typed(watch), traffic, lambda: 0, missed)


def _typed(watch: ClusterWatch) -> ClusterWatch:
    return watch


@pytest.fixture
def copy() -> Copy:
    made = Copy()
    for name in ("pod0", "pod1"):
        made.state.pods[name] = PodState(PodInfo(name, "127.0.0.1:1", "node", memory_bytes=1000))
    made.declare("red", "a", pod0=Tier.DEVICE)
    made.declare("red", "b", pod0=Tier.DISK)
    made.declare("blue", "secret", pod1=Tier.DEVICE)
    return made


LOADS = [
    pytest.param(None, 100.0, {"share": None, "text": "for 0 s"}, id="not measured"),
    pytest.param(10.0, 96.0, {"share": 0.4, "text": "40% of about 10.0 s"}, id="in progress"),
    pytest.param(10.0, 95.8, {"share": 0.4, "text": "40% of about 10.0 s"}, id="in steps"),
    pytest.param(2.0, 95.0, {"share": 1.0, "text": "late: 5 s of about 2.0 s"}, id="late"),
    pytest.param(10.0, 200.0, {"share": 0.0, "text": "0% of about 10.0 s"}, id="clocks differ"),
]


@pytest.mark.parametrize(("measured_s", "since_s", "progress"), LOADS)
def test_a_load_shows_how_far_it_is_by_earlier_ones(
    copy: Copy, measured_s: float | None, since_s: float, progress: dict[str, Any]
) -> None:
    spec = copy.state.models[ModelName("red", "a")].spec
    copy.state.residency.put(spec.key, "pod1", Residency(Tier.DISK, Tier.DISK, since_s, 100))
    if measured_s is not None:
        ChangeApplier(copy.state).apply(1, [["samples", spec.key, "load:disk", [measured_s]]])
    row = copy.overview().document(None, RowWindow())["rows"]["red/a"]
    assert row["cells"]["pod1"] == "loading from disk"
    assert row["loads"] == {"pod1": progress}


def test_operators_see_every_pod_and_model(copy: Copy) -> None:
    document = copy.overview().document(None, RowWindow())
    assert document["order"] == ["blue/secret", "red/a", "red/b"]
    assert document["rows"]["red/b"]["cells"] == {"pod0": "disk"}
    assert set(document["pods"]) == {"pod0", "pod1"}
    assert document["pods"]["pod0"]["memory_bytes"] == 1000


def test_a_tenant_sees_its_models_and_no_sizes_of_pods(copy: Copy) -> None:
    document = copy.overview().document("red", RowWindow())
    text = json.dumps(document)
    assert document["order"] == ["red/a", "red/b"]
    assert set(document["pods"]) == {"pod0"}
    assert "secret" not in text
    assert "bytes" not in text
    assert "queued" not in document["totals"]


def test_rows_are_windowed_and_searched(copy: Copy) -> None:
    overview = copy.overview()
    assert overview.document(None, RowWindow(offset=1, limit=1))["order"] == ["red/a"]
    assert overview.document(None, RowWindow(search="ecr"))["order"] == ["blue/secret"]
    copy.declare("red", "c")
    assert overview.document(None, RowWindow(search="red"))["order"] == ["red/a", "red/b", "red/c"]


def test_pods_that_do_not_have_a_model_any_more_have_no_cell(copy: Copy) -> None:
    key = copy.state.models[ModelName("red", "b")].spec.key
    copy.state.residency.put(key, "pod0", Residency(Tier.REMOTE, None, 0.0, 100))
    copy.state.residency.put(key, "pod1", Residency(Tier.REMOTE, Tier.REMOTE, 0.0, 100))
    rows = copy.overview().document(None, RowWindow())["rows"]
    assert rows["red/b"]["cells"] == {"pod1": "loading from remote"}


def test_the_forecasts_mean_is_expected_where_it_is_published(copy: Copy) -> None:
    key = "red/a@" + key_of(copy)
    copy.state.expected_rates = ExpectedRates({key: 0.1}, 99.0, {key: Band(2.5, 2.0, 7.0)})
    row = copy.overview().document("red", RowWindow())["rows"]["red/a"]
    assert row["expected_rps"] == 2.5


def test_cells_say_why_the_autoscaler_loaded_a_model(copy: Copy) -> None:
    def load(model: str, pod: str, reason: str) -> ActionRecord:
        return ActionRecord("load", model, reason, "", 0.0, pod, outcome=ActionOutcome.DONE)

    copy.state.expected_rates = ExpectedRates({"red/a@" + key_of(copy): 2.5}, 99.0)
    overview = copy.overview()
    overview.set_actions(
        [
            load("red/a", "pod0", "forecast"),
            load("red/a", "pod0", "old"),
            load("red/b", "pod0", "x"),
        ]
    )
    rows = overview.document("red", RowWindow())["rows"]
    assert rows["red/a"]["why"] == {"pod0": "forecast"}
    assert rows["red/a"]["expected_rps"] == 2.5
    assert rows["red/b"]["why"] == {}  # only on the disk by now


def key_of(copy: Copy) -> str:
    return copy.state.models[ModelName("red", "a")].spec.generation


def test_models_with_requests_come_first_if_asked_for(copy: Copy) -> None:
    overview = copy.overview("red/b", "blue/secret", "blue/secret", "unknown")
    by_rate = RowWindow(by_rate=True)
    assert overview.document(None, by_rate)["order"] == ["blue/secret", "red/b", "red/a"]
    assert overview.document("red", by_rate)["order"] == ["red/b", "red/a"]
    assert overview.document("red", RowWindow(offset=1, by_rate=True))["order"] == ["red/a"]


def test_only_the_parts_that_changed_are_sent_and_a_late_browser_misses_none(copy: Copy) -> None:
    now_s = [0.0]
    overview = copy.overview()
    traffic = overview.traffic = Traffic(GatewayMetrics(), lambda _: (0, 0.0, 0.0, 0.0))
    feed = OverviewFeed(overview, None, RowWindow(), clock=lambda: now_s[0])
    whole, first = feed.next_event(NOTHING)
    assert feed.next_event(NOTHING) == (whole, first)
    assert set(decoded(whole)) == {"totals", "pods", "rows", "order"}

    copy.declare("red", "b", pod0=Tier.DEVICE)
    assert feed.next_event(first) == (event({}), first), "not before its time"
    traffic.sample(10.0)
    now_s[0] += MIN_INTERVAL_S
    changed, second = feed.next_event(first)
    assert set(decoded(changed)) == {"rows", "points"}
    assert feed.next_event(second) == (event({}), second)

    del copy.state.models[ModelName("red", "a")]
    copy.state.models_version += 1
    traffic.sample(11.0)
    now_s[0] += MIN_INTERVAL_S
    delta = decoded(feed.next_event(second)[0])
    assert delta["order"] == ["blue/secret", "red/b"]
    assert [each[0] for each in delta["points"]] == [11.0]
    delta = decoded(feed.next_event(first)[0])
    assert set(delta["rows"]) == {"blue/secret", "red/b"}
    assert [each[0] for each in delta["points"]] == [10.0, 11.0]


def decoded(event: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    return found


def test_ten_thousand_models_cost_little(copy: Copy) -> None:
    for number in range(10_000):
        copy.declare("many", f"m{number:05}", pod0=Tier.DISK)
    overview = copy.overview()
    overview.document(None, RowWindow())  # sorts the names
    began_s = time.process_time()
    for _ in range(20):
        document = overview.document(None, RowWindow(offset=5_000))
    assert len(document["rows"]) == 30
    assert (time.process_time() - began_s) / 20 < 0.02
