"""One trace, live and simulated: every decision is the same, down to the pods."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from registry.model import RoutingPolicy
from tests.load.simulator.parity import Times, live, simulated

if TYPE_CHECKING:
    from pathlib import Path

BY_POLICY = {f"m-{policy.value}": policy for policy in RoutingPolicy}
"""One model for each policy, so that one replay tries them all."""


def measured(times: Times) -> Times:
    """The same times, with the registry told of them."""
    known = {
        "infer": times.infer_s, "share": times.infer_s, "preprocess": 0.0,
        "postprocess": times.around_s, "network": 0.0, "load:remote": times.load_s,
    }  # fmt: skip
    return Times(times.load_s, times.infer_s, times.around_s, known)


def test_requests_one_after_the_other_go_where_the_simulator_sends_them(tmp_path: Path) -> None:
    times = measured(Times(load_s=0.02, infer_s=0.004, around_s=0.001))
    models = random.Random(5).choices(sorted(BY_POLICY), k=60)
    rows = [(float(second), model) for second, model in enumerate(models)]
    expected = simulated(rows, times, BY_POLICY)
    with live(tmp_path, times, BY_POLICY) as platform:
        for (_, model), decision in zip(rows, expected, strict=True):
            assert platform.ask(model) == decision
            platform.settle()
    assert {each.start for each in expected} == {"warm", "remote"}


MARGIN_S = 0.03
"""No two events of different requests are nearer to each other in the trace below."""
QUEUEING, COLOCATION, PROXY, AUTO = (
    f"m-{policy.value}"
    for policy in (
        RoutingPolicy.COLOCATION_QUEUEING, RoutingPolicy.COLOCATION, RoutingPolicy.REMOTE_PROXY,
        RoutingPolicy.AUTO,
    )
)  # fmt: skip
CONCURRENT = [
    (0.0, QUEUEING), (0.11, COLOCATION), (0.26, PROXY), (0.51, QUEUEING), (0.65, AUTO),
    (0.84, PROXY), (0.93, QUEUEING), (1.15, QUEUEING), (1.22, AUTO), (1.47, QUEUEING),
    (1.55, COLOCATION), (1.75, PROXY), (1.89, PROXY), (2.11, QUEUEING), (2.24, QUEUEING),
    (2.48, QUEUEING), (2.59, QUEUEING), (2.68, QUEUEING), (2.88, PROXY), (3.08, AUTO),
]  # fmt: skip


def test_requests_at_once_go_where_the_simulator_sends_them(tmp_path: Path) -> None:
    times = measured(Times(load_s=0.47, infer_s=0.23, around_s=0.08))
    expected = simulated(CONCURRENT, times, BY_POLICY)
    with live(tmp_path, times, BY_POLICY) as platform:
        begun_s, asked, late_s = time.monotonic(), [], 0.0
        for at_s, model in CONCURRENT:
            time.sleep(max(0.0, begun_s + at_s - time.monotonic()))  # when the trace has it
            late_s = max(late_s, time.monotonic() - begun_s - at_s)
            asked.append(platform.ask_soon(model))
        decisions = [each.result() for each in asked]
    if decisions != expected and late_s > MARGIN_S / 2:
        pytest.skip(f"this machine replayed the trace {late_s:.3f} s late")
    assert decisions == expected
    assert {"cold", "warm", "warm-remote"} == {each.reason for each in expected}
