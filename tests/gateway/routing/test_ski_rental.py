"""Credit of lost time towards a load."""

import pytest

from gateway.routing.cold_start import ColdStartCredit
from gateway.routing.decision import ColdStartLoss, SendTo
from registry.domain.cluster import ChangeApplier
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare
from tests.gateway.virtual_placer import VirtualPlacer

LOSS = ColdStartLoss(1.0, 4.0)


def credit_after(*at_s: float) -> ColdStartCredit:
    """Credit after losses of 1 s each."""
    credit = ColdStartCredit(min(at_s, default=0.0), LOSS.load_s)
    for each in at_s:
        credit.add(LOSS, each)
    return credit


def counted_s(credit: ColdStartCredit, now_s: float) -> float:
    credit.advance(now_s)
    return credit.counted_s


@pytest.mark.parametrize(
    ("at_s", "asked_s", "expected_s"),
    [
        pytest.param((), 9.0, 0.0, id="nothing"),
        pytest.param((0.0, 1.0, 2.0), 3.9, 0.0, id="within-the-time-of-a-load"),
        pytest.param((0.0, 1.0, 2.0), 8.0, 3.0, id="after-the-time-of-two-loads"),
        pytest.param((0.0, 100.0), 101.0, 1.0, id="only-old-enough"),
        pytest.param((0.0, 5.0, 10.0, 15.0), 20.0, 3.0, id="spread-over-time"),
    ],
)
def test_a_loss_counts_after_the_time_of_a_load(
    at_s: tuple[float, ...], asked_s: float, expected_s: float
) -> None:
    assert counted_s(credit_after(*at_s), asked_s) == pytest.approx(expected_s)


def test_no_loss_counts_before_the_time_of_a_load() -> None:
    credit = credit_after(0.0)
    for tenth in range(1, 200):
        credit.add(LOSS, tenth / 10)
        old_enough = sum(each / 10 <= tenth / 10 - LOSS.load_s for each in range(tenth + 1))
        assert counted_s(credit, tenth / 10) <= old_enough


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_losses_count_after_the_time_of_a_load_though_the_clock_jumps(jump_s: float) -> None:
    credit = credit_after(5000.0, 5001.0)
    for second in range(1, 9):
        credit.add(LOSS, 5001.0 + jump_s + second)
    assert counted_s(credit, 5010.0 + jump_s) >= 2.0


def test_repeated_queueing_leads_to_another_copy() -> None:
    times = {
        "load:remote": 3.0,
        "infer": 1.0,
        "preprocess": 0.0,
        "postprocess": 0.0,
        "network": 9.0,
    }
    state = cluster(PodSketch("pod-a", "warm", busy=1), PodSketch("pod-b"), measured=times)
    spec = declare(state)
    ChangeApplier(state).apply(
        state.version + 1,
        [["at", spec.key, "pod-a", f"device|-|{int(NOW_S * 1000)}|100"]]
        + [["samples", spec.key, measure, [seconds]] for measure, seconds in times.items()],
    )
    virtual = VirtualPlacer(state)
    for _ in range(12):
        placement = virtual.place(spec)
        virtual.placer.cancel(placement)
        if not state.pods["pod-b"].has_free_slot:
            virtual.free_slot("pod-b")
        virtual.events.now_s += 10.0
    decisions = virtual.decisions
    loads = [number for number, each in enumerate(decisions) if isinstance(each, SendTo)]
    assert loads == [3, 7, 11]
    bought = decisions[3]
    assert isinstance(bought, SendTo)
    assert bought.mode is LoadMode.LOAD
    assert {option.name: option.credit_s for option in bought.options} == {
        "queue": 0.0,
        "proxy": 0.0,
        "cold start": pytest.approx(3.0),
    }
