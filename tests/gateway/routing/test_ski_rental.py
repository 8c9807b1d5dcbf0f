"""Credit of lost time towards a load."""

import pytest

from gateway.routing.decision import ColdStartLoss, Reason, SendTo, Wait
from gateway.routing.ski_rental import ColdStartCredit
from registry.domain.cluster_changes import ChangeApplier
from registry.domain.model import ModelName
from registry.domain.reservation import LoadMode
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare
from tests.gateway.virtual_placer import VirtualPlacer

NAME = ModelName("default", "m")
LOAD_S = 4.0
LOADS = SendTo("pod-b", "pod-b", LoadMode.LOAD, Reason.COLD_WARM_BUSY)


def wait(lost_s: float) -> Wait:
    return Wait(Reason.QUEUE_WARM_BUSY, loss=ColdStartLoss(lost_s, LOAD_S))


def credit_after(*at_s: float) -> ColdStartCredit:
    """Credit after losses of 1 s each."""
    credit = ColdStartCredit()
    for each in at_s:
        credit.record(NAME, wait(1.0), each)
    return credit


@pytest.mark.parametrize(
    ("at_s", "asked_s", "counted_s"),
    [
        pytest.param((), 9.0, 0.0, id="nothing"),
        pytest.param((0.0, 1.0, 2.0), 3.9, 0.0, id="within-the-time-of-a-load"),
        pytest.param((0.0, 1.0, 2.0), 8.0, 3.0, id="after-the-time-of-two-loads"),
        pytest.param((0.0, 100.0), 101.0, 1.0, id="only-old-enough"),
        pytest.param((0.0, 5.0, 10.0, 15.0), 20.0, 3.0, id="spread-over-time"),
    ],
)
def test_a_loss_counts_after_the_time_of_a_load(
    at_s: tuple[float, ...], asked_s: float, counted_s: float
) -> None:
    assert credit_after(*at_s).counted_s(NAME, asked_s) == pytest.approx(counted_s)


def test_no_loss_counts_before_the_time_of_a_load() -> None:
    credit = credit_after(0.0)
    for tenth in range(1, 200):
        credit.record(NAME, wait(1.0), tenth / 10)
        old_enough = sum(each / 10 <= tenth / 10 - LOAD_S for each in range(tenth + 1))
        assert credit.counted_s(NAME, tenth / 10) <= old_enough


def test_a_load_resets_the_credit() -> None:
    credit = credit_after(0.0, 1.0)
    credit.record(NAME, LOADS, 50.0)
    assert credit.counted_s(NAME, 100.0) == 0.0


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_losses_count_after_the_time_of_a_load_though_the_clock_jumps(jump_s: float) -> None:
    credit = credit_after(5000.0, 5001.0)
    for second in range(1, 9):
        credit.record(NAME, wait(1.0), 5001.0 + jump_s + second)
    assert credit.counted_s(NAME, 5010.0 + jump_s) >= 2.0


def test_models_do_not_share_credit() -> None:
    assert credit_after(0.0).counted_s(ModelName("default", "other"), 100.0) == 0.0


def test_drops_the_oldest_model_beyond_the_maximum() -> None:
    credit = ColdStartCredit(max_models=2)
    names = [ModelName("default", f"m-{number}") for number in range(4)]
    for name in names:
        credit.record(name, wait(1.0), 0.0)
    assert [credit.counted_s(name, 100.0) for name in names] == [0.0, 0.0, 1.0, 1.0]


def test_repeated_queueing_leads_to_another_copy() -> None:
    times = {
        "load:remote": 3.0, "infer": 1.0, "preprocess": 0.0, "postprocess": 0.0, "network": 9.0,
    }  # fmt: skip
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
        "queue": 0.0, "proxy": 0.0, "cold start": pytest.approx(3.0),
    }  # fmt: skip
