"""Running sums of a pod's inferences against the sum over each, on random histories."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.device_work import ASSUMED_DUE_S
from registry.domain.estimates import StageTimes
from registry.domain.pod_state import PlacedRequest, PodWork

READY_S = 0.001
SHARES_S = {"a/small@0": 0.002, "a/large@0": 0.03, "b/other@0": 0.01}


def times_of(infer_s: float, joins_s: float) -> StageTimes:
    """Of an inference that shares its batch with others for `joins_s`."""
    return StageTimes(infer_s, infer_s - joins_s, READY_S, 0.0, True)


class History:
    """Requests placed at one pod, as by a gateway: each after the backlog that it finds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 1_000_000.0
        self.work = PodWork()
        self.placed: list[PlacedRequest] = []
        self.keys = self.rng.sample(list(SHARES_S), self.rng.choice([1, 1, 2, 3]))
        self.has_deadlines = self.rng.random() < 0.5
        self.pace_s = self.rng.choice([0.0005, 0.005, 0.02])
        self.may_fall_back = self.rng.random() < 0.5
        """By a clock that is set back, loads, times that were not measured."""

    def step(self) -> None:
        """Place a request, or end one, and let time pass."""
        rng = self.rng
        self.now_s += rng.expovariate(1 / self.pace_s)
        if self.may_fall_back and rng.random() < 0.02:
            self.now_s -= rng.choice([0.003, 0.3, 30.0])
        if not self.placed or rng.random() < 0.5 + 0.4 * (len(self.placed) < rng.randrange(60)):
            self._place(rng.choice(self.keys))
            return
        at = 0 if rng.random() < 0.7 else rng.randrange(len(self.placed))
        self.placed.pop(at).end(is_cancelled=rng.random() < 0.2)

    def _place(self, key: str) -> None:
        share_s = SHARES_S[key] * self.rng.uniform(0.5, 1.5)
        due_s = self.due_s()
        ready_s = READY_S
        if self.may_fall_back and self.rng.random() < 0.05:
            ready_s += 0.5
        start_s = max(ready_s, self.work.backlog_of_each(key, due_s, *self.asked()).free_s)
        request = PlacedRequest(
            key,
            self.now_s,
            due_s,
            self.now_s + ready_s,
            self.now_s + start_s,
            share_s,
            share_s * self.rng.choice([1, 4]),
            not (self.may_fall_back and self.rng.random() < 0.05),
            0.0,
            self.work,
            self.work,
        )
        self.placed.append(request)
        self.work.add(request, times_of(share_s, 0.0))

    def due_s(self) -> float:
        left_s = self.rng.uniform(0.01, 0.5) if self.has_deadlines else READY_S + ASSUMED_DUE_S
        return self.now_s + left_s

    def asked(self, joins_s: float | None = None) -> tuple[float, int, StageTimes, float]:
        joins_s = self.rng.choice([0.0, 0.015]) if joins_s is None else joins_s
        return READY_S, len(self.placed), times_of(0.02, joins_s), self.now_s


@given(st.integers(0, 1 << 32))
def test_running_sums_are_the_sums_over_each_request(seed: int) -> None:
    history = History(seed)
    for _ in range(150):
        history.step()
        key, due_s, asked = history.rng.choice(list(SHARES_S)), history.due_s(), history.asked()
        each = history.work.backlog_of_each(key, due_s, *asked)
        found = history.work.backlog(key, due_s, *asked)
        assert each.free_s - READY_S - 1e-6 <= found.free_s <= each.free_s + 1e-6
        assert found.guessed_s == pytest.approx(each.guessed_s, abs=READY_S + 1e-6)
        assert found.overtaken == each.overtaken


def test_a_pod_without_requests_keeps_nothing_of_those_before() -> None:
    history = History(1)
    for _ in range(300):
        history.step()
    for request in history.placed:
        request.end()
    history.now_s += 60.0
    history.placed = []
    for _ in range(6):
        history._place(history.keys[0])
    expected_s = sum([each.share_s for each in history.placed])
    found = history.work.backlog(history.keys[0], history.now_s + 61.0, *history.asked(0.0))
    assert found.free_s == pytest.approx(expected_s, abs=READY_S)
