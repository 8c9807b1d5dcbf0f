"""Forecasts compared with values computed by hand from Liu 2025, section 6.5, equations 1-3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.decision import SendTo
from gateway.routing.latency_model import estimate_of, proxy_to, run_at, wait_for
from registry.domain.estimates import PRIORS
from registry.domain.model import Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import LoadMode
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, request

A = "pod-a"
TIMES = {
    "load:remote": 0.8, "load:disk": 0.2, "infer": 0.3, "preprocess": 0.5, "postprocess": 1.0,
    "network": 0.6,
}  # fmt: skip
HOLD_S = 1.8


@pytest.mark.parametrize(
    ("pod", "expected_s"),
    [
        pytest.param(PodSketch(A, "warm"), HOLD_S, id="warm-and-idle"),
        pytest.param(PodSketch(A), 0.8 + HOLD_S, id="cold"),
        pytest.param(PodSketch(A, "disk"), 0.2 + HOLD_S, id="from-disk"),
        pytest.param(
            PodSketch(A, "warm", slots=4, busy=2), 0.6 + HOLD_S - 0.5, id="prepared-behind-two"
        ),
        pytest.param(
            PodSketch(A, slots=9, busy=2), 0.8 + HOLD_S, id="a-backlog-shorter-than-the-load"
        ),
        pytest.param(
            PodSketch(A, slots=9, busy=5), 1.5 + 0.3 + 1.0, id="a-backlog-longer-than-the-load"
        ),
        pytest.param(
            PodSketch(A, "loading:remote", slots=2, loading_since_s=NOW_S - 0.5),
            0.3 + HOLD_S,
            id="the-rest-of-a-load",
        ),
        pytest.param(
            PodSketch(A, "loading:remote", slots=2, loading_since_s=NOW_S - 1.0),
            1.0 + HOLD_S,
            id="a-late-load-takes-as-long-again",
        ),
    ],
)
def test_run_at(pod: PodSketch, expected_s: float) -> None:
    state = cluster(pod, measured=TIMES)
    forecast = run_at(state.pods[A], request(), state, NOW_S)
    assert forecast.seconds == pytest.approx(expected_s)
    assert forecast.is_measured


@pytest.mark.parametrize(
    ("pod", "expected_s"),
    [
        pytest.param(PodSketch(A), 3 * 0.8, id="a-new-load-shares-the-link"),
        pytest.param(PodSketch(A, "disk"), 3 * 0.2, id="from-disk"),
        pytest.param(
            PodSketch(A, "loading:remote", loading_since_s=NOW_S - 0.5), 0.3, id="a-load-in-time"
        ),
        pytest.param(
            PodSketch(A, "loading:remote", loading_since_s=NOW_S - 1.0), 1.0, id="a-late-load"
        ),
        pytest.param(
            PodSketch(A, "loading:remote", loading_since_s=NOW_S - 9.0),
            3 * 0.8,
            id="a-load-in-the-queue-is-no-worse-than-a-new-one",
        ),
    ],
)
def test_loads_in_progress_at_the_pod_delay_a_load(pod: PodSketch, expected_s: float) -> None:
    state = cluster(pod, measured=TIMES)
    for other in ("default/b@1", "default/c@1"):
        state.residency.put(other, A, Residency(Tier.REMOTE, Tier.REMOTE, NOW_S, 100))
    state.residency.put("default/d@1", A, Residency(Tier.DEVICE, None, NOW_S, 100))
    assert run_at(state.pods[A], request(), state, NOW_S).seconds == pytest.approx(
        expected_s + HOLD_S
    )


def test_requests_in_shared_batches_count_with_their_share() -> None:
    behind_eight = PodSketch(A, "warm", slots=16, busy=8)
    state = cluster(behind_eight, measured={**TIMES, "share": 0.05})
    forecast = run_at(state.pods[A], request(), state, NOW_S)
    assert forecast.seconds == pytest.approx(max(8 * 0.05, 0.5) + 0.3 + 1.0)


@pytest.mark.parametrize(
    ("pod", "ahead", "expected_s"),
    [
        pytest.param(PodSketch(A, "warm", busy=1), 0, 2 * HOLD_S, id="behind-one"),
        pytest.param(PodSketch(A, "warm", busy=1), 2, 4 * HOLD_S, id="behind-one-and-two-queued"),
        pytest.param(PodSketch(A, "warm", slots=2, busy=2), 1, 2 * HOLD_S, id="two-slots"),
        pytest.param(PodSketch(A, "warm", slots=2, busy=2), 2, 3 * HOLD_S, id="two-slots-odd"),
        pytest.param(PodSketch(A, "loading:remote", busy=1), 0, 0.8 + 2 * HOLD_S, id="warming"),
        pytest.param(
            PodSketch(A, "warm", busy=1, ongoing=0), 0, 1.0 + HOLD_S, id="only-postprocessing-left"
        ),
        pytest.param(
            PodSketch(A, "warm", slots=2, busy=2, ongoing=1),
            1,
            2 * HOLD_S,
            id="one-of-two-is-past-inference",
        ),
        pytest.param(
            PodSketch(A, "warm", busy=1, ongoing=9),
            0,
            9 * 0.3 - 0.5 + HOLD_S,
            id="behind-others-by-proxy",
        ),
    ],
)
def test_wait_for(pod: PodSketch, ahead: int, expected_s: float) -> None:
    state = cluster(pod, measured=TIMES)
    forecast = wait_for([state.pods[A]], request(ahead=ahead), state, NOW_S)
    assert forecast.seconds == pytest.approx(expected_s)


def test_a_stalled_queue_is_expected_to_stall_as_long_again() -> None:
    state = cluster(PodSketch(A, "warm", busy=1), measured=TIMES)
    forecast = wait_for([state.pods[A]], request(stalled_s=5.0), state, NOW_S)
    assert forecast.seconds == pytest.approx(5.0 + HOLD_S)


@pytest.mark.parametrize(
    ("stalled_s", "expected_s"),
    [
        pytest.param(HOLD_S, 1.0, id="a-request-long"),
        pytest.param(2.1 * HOLD_S, 2.1 * HOLD_S, id="two-requests-long"),
    ],
)
def test_a_queue_may_stall_for_longer_if_its_next_slot_is_past_inference(
    stalled_s: float, expected_s: float
) -> None:
    state = cluster(PodSketch(A, "warm", busy=1, ongoing=0), measured=TIMES)
    forecast = wait_for([state.pods[A]], request(stalled_s=stalled_s), state, NOW_S)
    assert forecast.seconds == pytest.approx(expected_s + HOLD_S)


def test_a_queue_drains_through_all_pods_that_hold_the_model() -> None:
    warming = PodSketch("pod-b", "loading:remote", busy=1)
    state = cluster(PodSketch(A, "warm", busy=1), warming, measured=TIMES)
    forecast = wait_for(list(state.pods.values()), request(ahead=1), state, NOW_S)
    assert forecast.seconds == pytest.approx(0.8 + 2 * HOLD_S)


@pytest.mark.parametrize(
    ("pod", "expected_s"),
    [
        pytest.param(PodSketch(A, "warm"), 0.6 + HOLD_S, id="the-network-alone"),
        pytest.param(
            PodSketch(A, "warm", busy=1), 0.6 + HOLD_S, id="a-backlog-shorter-than-the-transfer"
        ),
        pytest.param(
            PodSketch(A, "warm", slots=4, busy=4),
            1.2 + 0.3 + 1.0,
            id="a-backlog-longer-than-the-transfer",
        ),
        pytest.param(
            PodSketch(A, "loading:remote", busy=1),
            0.8 + 0.3 + 0.3 + 1.0,
            id="behind-a-load-and-the-request-that-waits-for-it",
        ),
    ],
)
def test_proxy_to(pod: PodSketch, expected_s: float) -> None:
    state = cluster(pod, PodSketch("pod-b", "disk"), measured=TIMES)
    forecast = proxy_to(state.pods[A], state.pods["pod-b"], request(), state, NOW_S)
    assert forecast.seconds == pytest.approx(expected_s)


def test_an_entry_pod_without_the_tokenizer_fetches_it_first() -> None:
    state = cluster(PodSketch(A, "warm"), PodSketch("pod-b"), measured={**TIMES, "assets": 0.2})
    forecast = proxy_to(state.pods[A], state.pods["pod-b"], request(), state, NOW_S)
    assert forecast.seconds == pytest.approx(0.2 + 0.6 + HOLD_S)
    assert forecast.is_measured


def test_a_prior_marks_the_forecast_as_unmeasured() -> None:
    state = cluster(PodSketch(A), measured={})
    forecast = run_at(state.pods[A], request(), state, NOW_S)
    around_s = PRIORS.preprocess_s + PRIORS.postprocess_s
    assert forecast.seconds == pytest.approx(PRIORS.load_s + PRIORS.infer_s + around_s)
    assert not forecast.is_measured


def test_an_unmeasured_load_makes_the_forecast_unmeasured() -> None:
    times = {name: value for name, value in TIMES.items() if not name.startswith("load")}
    state = cluster(PodSketch(A, link_bytes_per_s=PRIORS.load_bytes), measured=times)
    forecast = run_at(state.pods[A], request(), state, NOW_S)
    assert forecast.seconds == pytest.approx(1.0 + HOLD_S)
    assert not forecast.is_measured


def test_estimates_a_decision_without_forecast() -> None:
    pods = (PodSketch(A, "warm"), PodSketch("pod-b", "disk"))
    state = cluster(*pods, measured=TIMES)
    here = SendTo(A, A, LoadMode.WARM, reason=None)  # type: ignore[arg-type]  # not read
    there = SendTo("pod-b", A, LoadMode.WARM, reason=None)  # type: ignore[arg-type]
    assert estimate_of(here, request(), state, NOW_S).seconds == pytest.approx(HOLD_S)
    assert estimate_of(there, request(), state, NOW_S).seconds == pytest.approx(0.6 + HOLD_S)


@given(
    busy=st.integers(0, 6),
    slots=st.integers(1, 6),
    ahead=st.integers(0, 5),
    at=st.sampled_from(["warm", "loading:remote", "disk", "nothing"]),
)
def test_forecasts_never_fall_as_load_grows(busy: int, slots: int, ahead: int, at: str) -> None:
    def forecasts(busy: int, ahead: int) -> list[float]:
        state = cluster(PodSketch(A, at, slots=slots, busy=busy), measured=TIMES)
        pod, view = state.pods[A], request(ahead=ahead)
        return [
            run_at(pod, view, state, NOW_S).seconds,
            proxy_to(pod, pod, view, state, NOW_S).seconds,
            wait_for([pod], view, state, NOW_S).seconds,
        ]

    less = forecasts(busy, ahead)
    for more in (forecasts(busy + 1, ahead), forecasts(busy, ahead + 1)):
        assert all(high >= low for low, high in zip(less, more, strict=True))


def test_device_time_of_other_requests_counts_only_if_measured() -> None:
    """A prior of half a second times three requests would exceed any load."""
    busy = PodSketch(A, "warm", slots=3, busy=3)
    state = cluster(busy, measured={"load:remote": 0.25})
    hold_s = PRIORS.infer_s + PRIORS.preprocess_s + PRIORS.postprocess_s
    forecast = wait_for([state.pods[A]], request(), state, NOW_S)
    assert forecast.seconds == pytest.approx(2 * hold_s)
    assert not forecast.is_measured
