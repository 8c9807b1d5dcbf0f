"""One trace, live and simulated: every decision is the same, including the pods."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from registry.domain.model import RoutingPolicy
from tests.load.simulator.parity import Decision, Times, live, simulated
from tests.load.simulator.traces import Row

BY_POLICY = {f"m-{policy.value}": policy for policy in RoutingPolicy}
"""One model for each policy, so that one replay tries them all."""


def measured(times: Times) -> Times:
    """The same times, also as measurements in the registry."""
    known = {
        "infer": times.infer_s,
        "share": times.infer_s,
        "preprocess": 0.0,
        "postprocess": times.around_s,
        "network": 0.0,
        "load:remote": times.load_s,
    }
    return Times(times.load_s, times.infer_s, times.around_s, known)


@pytest.mark.slow
def test_decisions_for_requests_one_by_one_are_those_of_the_simulator(tmp_path: Path) -> None:
    times = measured(Times(load_s=0.02, infer_s=0.004, around_s=0.001))
    models = random.Random(5).choices(sorted(BY_POLICY), k=60)
    rows = [(float(second), model) for second, model in enumerate(models)]
    expected = simulated(rows, times, BY_POLICY)
    with live(tmp_path, times, BY_POLICY) as platform:
        for (_, model), decision in zip(rows, expected, strict=True):
            assert platform.ask(model) == decision
            platform.settle()
    assert {each.start for each in expected} == {"warm", "remote"}


PACES = (1, 4, 16)
"""Factors by which the trace is slowed down until the machine keeps the order of its events."""
QUEUEING, COLOCATION, PROXY, AUTO = (
    f"m-{policy.value}"
    for policy in (
        RoutingPolicy.COLOCATION_QUEUEING,
        RoutingPolicy.COLOCATION,
        RoutingPolicy.REMOTE_PROXY,
        RoutingPolicy.AUTO,
    )
)
CONCURRENT = [
    (0.0, QUEUEING), (0.11, COLOCATION), (0.26, PROXY), (0.51, QUEUEING), (0.65, AUTO),
    (0.84, PROXY), (0.93, QUEUEING), (1.15, QUEUEING), (1.22, AUTO), (1.47, QUEUEING),
    (1.55, COLOCATION), (1.75, PROXY), (1.89, PROXY), (2.11, QUEUEING), (2.24, QUEUEING),
    (2.48, QUEUEING), (2.59, QUEUEING), (2.68, QUEUEING), (2.88, PROXY), (3.08, AUTO),
]  # fmt: skip
"""Events of different requests are at least 0.03 s apart."""


def replayed(folder: Path, rows: Sequence[Row], times: Times) -> list[Decision]:
    """Decisions of a new platform for requests at the times of the trace."""
    with live(folder, times, BY_POLICY) as platform:
        begun_s, asked = time.monotonic(), []
        for at_s, model in rows:
            time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
            asked.append(platform.ask_soon(model))
        return [each.result() for each in asked]


@pytest.mark.slow
def test_decisions_for_concurrent_requests_are_those_of_the_simulator(tmp_path: Path) -> None:
    for pace in PACES:  # delays of a busy machine matter less in a slower trace
        times = measured(Times(load_s=0.47 * pace, infer_s=0.23 * pace, around_s=0.08 * pace))
        rows = [(at_s * pace, model) for at_s, model in CONCURRENT]
        expected = simulated(rows, times, BY_POLICY)
        assert {"cold", "warm", "warm-remote"} == {each.reason for each in expected}
        decisions = replayed(tmp_path / f"{pace}", rows, times)
        if decisions == expected:
            return
    assert decisions == expected
