"""Requests of the last minute: missed deadlines, percentiles of their times; the trace of ten."""

import time

import pytest

from gateway.console.pages import RequestFilter, request_rows
from gateway.console.traffic import LastMinute, replayed, trace_of
from gateway.telemetry.recent_requests import RecentRequest, RecentRequests, StageTimings
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState()
    for name, deadline_s in (("fast", 0.1), ("any", None)):
        spec = ModelSpec(
            ModelName("red", name), "file:///m", policy=ModelPolicy(deadline_s=deadline_s)
        )
        made.models[spec.name] = ModelRecord(spec)
    return made


def request(
    model: str, ms: float | None, *, reason: str = "warm", age_s: float = 0
) -> RecentRequest:
    timings = None if ms is None else StageTimings(ms / 2, ms / 2, 0.0, 0.0, 0.0, 0.0)
    at_s = time.time() - age_s
    return RecentRequest(model, at_s, model, "auto", reason, "warm", 200, "p", timings, None)


@pytest.mark.parametrize(
    ("given", "is_missed"),
    [
        pytest.param(request("red/fast", 99), False, id="in time"),
        pytest.param(request("red/fast", 101), True, id="late"),
        pytest.param(request("red/any", 9_000), False, id="no deadline"),
        pytest.param(request("red/any", None, reason="queue-timeout"), True, id="waited too long"),
        pytest.param(request("blue/absent", None, reason="no-model"), False, id="no model"),
    ],
)
def test_the_models_deadline_decides(
    state: ClusterState, given: RecentRequest, *, is_missed: bool
) -> None:
    assert LastMinute(RecentRequests(), state).is_missed(given) is is_missed


def test_the_last_minute_is_counted_by_viewer(state: ClusterState) -> None:
    recent = RecentRequests()
    minute = LastMinute(recent, state)
    for age_s in (61.0, 30.0, 0.0):
        recent.add(request("red/fast", 200, age_s=age_s))
    recent.add(request("blue/m", None, reason="deadline"))
    assert [minute.missed(viewer) for viewer in (None, "red", "blue", "re")] == [3, 2, 1, 0]


def test_requests_are_listed_by_namespace_and_by_missed_deadlines(state: ClusterState) -> None:
    recent = RecentRequests()
    minute = LastMinute(recent, state)
    for model, ms in (("red/fast", 50), ("red/fast", 200), ("blue/m", 1)):
        recent.add(request(model, ms))

    def took(wanted: RequestFilter) -> list[float]:
        return [round(row.took_s, 3) for row in request_rows(recent, minute, None, wanted)]

    assert took(RequestFilter(tenant="red")) == [0.2, 0.05]
    assert took(RequestFilter(tenant="re")) == []
    assert took(RequestFilter(missed=True)) == [0.2]


def test_percentiles_are_those_of_the_requests_themselves(state: ClusterState) -> None:
    recent = RecentRequests()
    recent.add(request("red/fast", 10_000, age_s=61.0))
    for ms in (700, 10, 30, 20):
        recent.add(request("red/fast", ms))
    recent.add(request("blue/m", 5_000))
    recent.add(request("blue/m", None, reason="queue-full"))
    minute = LastMinute(recent, state)
    assert [minute.percentile_s(part, "red") for part in (0.5, 0.99)] == [0.03, 0.7]
    assert minute.percentile_s(0.99, None) == 5
    assert minute.percentile_s(0.5, "green") is None


def test_requests_of_ten_minutes_to_existing_models_are_replayed_by_arrival(
    state: ClusterState,
) -> None:
    recent = RecentRequests()
    for at_s, model, took_ms in (
        (100.0, "fast", 100),
        (900.0, "gone", 100),
        (901.0, "fast", 5_000),
        (900.5, "fast", 100),
    ):
        timings = StageTimings(took_ms / 2, took_ms / 2, 0.0, 0.0, 0.0, 0.0)
        recent.add(
            RecentRequest(
                "r", at_s, f"red/{model}", "auto", "warm", "warm", 200, "pod-a", timings, None
            )
        )
    found = replayed(recent, state, 1000.0)
    assert [each.at_s for each in found] == [901.0, 900.5]
    lines = trace_of(found).decode().splitlines()
    assert lines == ["at_s,tenant,model", "0.000000,red,fast", "4.400000,red,fast"]
