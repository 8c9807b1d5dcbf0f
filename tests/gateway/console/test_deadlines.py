"""Requests that missed deadlines: which, and how many of each viewer's in the last minute."""

from __future__ import annotations

import time

import pytest

from gateway.console.deadlines import MissedDeadlines
from gateway.console.request_list import RequestFilter, request_rows
from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
from gateway.telemetry.stage_timings import StageTimings
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
    assert MissedDeadlines(RecentRequests(), state).is_missed(given) is is_missed


def test_the_last_minute_is_counted_by_viewer(state: ClusterState) -> None:
    recent = RecentRequests()
    deadlines = MissedDeadlines(recent, state)
    for age_s in (61.0, 30.0, 0.0):
        recent.add(request("red/fast", 200, age_s=age_s))
    recent.add(request("blue/m", None, reason="deadline"))
    assert [deadlines.last_minute(viewer) for viewer in (None, "red", "blue", "re")] == [3, 2, 1, 0]


def test_requests_are_listed_by_namespace_and_by_missed_deadlines(state: ClusterState) -> None:
    recent = RecentRequests()
    deadlines = MissedDeadlines(recent, state)
    for model, ms in (("red/fast", 50), ("red/fast", 200), ("blue/m", 1)):
        recent.add(request(model, ms))

    def took(wanted: RequestFilter) -> list[float]:
        return [round(row["took_s"], 3) for row in request_rows(recent, deadlines, None, wanted)]

    assert took(RequestFilter(tenant="red")) == [0.2, 0.05]
    assert took(RequestFilter(tenant="re")) == []
    assert took(RequestFilter(missed=True)) == [0.2]
