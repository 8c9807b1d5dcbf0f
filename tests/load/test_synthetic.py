import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.synthetic import GENERATORS, Diurnal, OnOff, RateStep, Spike, arrival_times
from load.trace_spec import open_trace
from load.traces.batches import summarise
from load.traces.parameters import Popularity, zipf_shares
from tests.load.rows import all_times, column, named, rows

EXAMPLES = {
    "poisson": "poisson:rate=5,duration=2m",
    "gamma": "gamma:rate=5,cv=4,duration=2m",
    "diurnal": "diurnal:rate=5,duration=2m,period=1m",
    "spike": "spike:rate=5,peak=50,at=1m,length=10s,duration=2m",
    "on-off": "on-off:rate=10,on=5s,off=5s,duration=2m",
}


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_is_seeded_and_ends_in_time(name: str) -> None:
    found = named(EXAMPLES[name], seed=3)
    assert found
    assert found[-1]["at_s"] < 120.0
    assert named(EXAMPLES[name], seed=3) == found
    assert named(EXAMPLES[name], seed=4) != found


def _gaps(text: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.diff(all_times(open_trace(text, seed=1)), prepend=0.0)


@pytest.mark.parametrize(
    ("text", "cv"),
    [
        pytest.param("poisson:rate=20,duration=1h", 1.0, id="poisson"),
        pytest.param("gamma:rate=20,duration=1h,cv=3", 3.0, id="bursty"),
        pytest.param("gamma:rate=20,duration=1h,cv=0.25", 0.25, id="regular"),
        pytest.param("gamma:rate=20,duration=1h,cv=0", 0.0, id="even"),
    ],
)
def test_gaps_have_the_requested_rate_and_variation(text: str, cv: float) -> None:
    gaps = _gaps(text)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_a_diurnal_rate_is_lowest_at_the_start_and_highest_half_a_period_later() -> None:
    text = "diurnal:rate=50,amplitude=0.8,period=10m,duration=20m"
    hist, _ = np.histogram(all_times(open_trace(text, seed=1)), bins=20, range=(0, 1200))
    assert hist.sum() == pytest.approx(50 * 1200, rel=0.02)
    assert hist[0] < 0.35 * 3000
    assert hist[4] > 1.6 * 3000
    assert hist[:10] == pytest.approx(hist[10:], rel=0.3)


@given(st.floats(0, 1), st.floats(1, 100), st.floats(0.1, 20))
def test_diurnal_steps_cover_the_duration_and_keep_the_mean(
    amplitude: float, period_s: float, duration_s: float
) -> None:
    given = Diurnal.model_construct(
        rate=2.0, amplitude=amplitude, period=period_s, duration=duration_s
    )
    steps = list(given.steps(np.random.default_rng()))
    assert steps[0].start_s == 0.0
    assert steps[-1].end_s == duration_s
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(steps))
    expected = sum((step.end_s - step.start_s) * step.rate_rps for step in steps)
    turn = 2 * np.pi / period_s
    exact = 2.0 * (duration_s - amplitude * np.sin(turn * duration_s) / turn)
    assert expected == pytest.approx(exact, rel=1e-6, abs=1e-6)


def test_a_spike_has_its_place_and_peak() -> None:
    at_s = all_times(open_trace(EXAMPLES["spike"], seed=1))
    inside = (at_s >= 60.0) & (at_s < 70.0)
    assert inside.sum() == pytest.approx(500, rel=0.2)
    assert (~inside).sum() == pytest.approx(550, rel=0.2)


@pytest.mark.parametrize("at_s", [0.0, 5.0, 8.0, 20.0])
def test_a_spike_is_cut_at_the_ends_of_the_trace(at_s: float) -> None:
    given = Spike.model_construct(rate=1.0, peak=9.0, at=at_s, length=4.0, duration=10.0)
    steps = list(given.steps(np.random.default_rng()))
    assert sum(step.end_s - step.start_s for step in steps) == 10.0
    high_s = sum(step.end_s - step.start_s for step in steps if step.rate_rps == 9.0)
    assert high_s == max(min(at_s + 4.0, 10.0) - at_s, 0.0)


def test_on_and_off_have_their_mean_lengths() -> None:
    given = OnOff.model_construct(rate=3.0, on=2.0, off=6.0, duration=40_000.0)
    steps = list(given.steps(np.random.default_rng(2)))
    assert {step.rate_rps for step in steps} == {0.0, 3.0}
    on_s = sum(step.end_s - step.start_s for step in steps if step.rate_rps)
    assert on_s / 40_000.0 == pytest.approx(0.25, rel=0.1)


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.sampled_from([0.0, 0.1, 3.0, 40.0])), min_size=1),
    st.sampled_from([0.0, 0.5, 1.0, 4.0]),
)
def test_arrivals_fall_only_where_the_rate_is_above_zero(
    made: list[tuple[float, float]], cv: float
) -> None:
    ends = np.cumsum([length for length, _ in made])
    starts = np.concatenate([[0.0], ends[:-1]])
    steps = [RateStep(a, b, rate) for a, b, (_, rate) in zip(starts, ends, made, strict=True)]
    parts = list(arrival_times(steps, cv=cv, rng=np.random.default_rng(1)))
    at_s = np.concatenate([np.zeros(0), *parts])
    assert np.all(np.diff(at_s) >= 0.0)
    for at in at_s:
        index = min(int(np.searchsorted(ends, at, side="right")), len(ends) - 1)
        assert steps[index].rate_rps > 0.0
    if cv == 0.0:
        expected = sum(length * rate for length, rate in made)
        assert len(at_s) == pytest.approx(expected, abs=1.0)


def test_zipf_shares_follow_zipfs_law() -> None:
    assert zipf_shares(3, 1.0) == pytest.approx(np.array([6, 3, 2]) / 11)
    assert zipf_shares(4, 0.0) == pytest.approx([0.25] * 4)


def test_models_have_the_shares_of_their_ranks() -> None:
    found = summarise(open_trace("poisson:rate=1000,duration=1m,models=4,zipf=1", seed=1))
    counts = [found.models[f"default/model-{rank}"] for rank in range(4)]
    assert np.array(counts) / found.arrivals == pytest.approx(zipf_shares(4, 1.0), rel=0.05)


@pytest.mark.slow
def test_popularity_drifts_and_keeps_the_shares_of_ranks() -> None:
    text = "poisson:rate=200,duration=10m,models=10,zipf=1.5,drift=1m"
    found = rows(open_trace(text, seed=1))
    favourites = []
    for minute in range(10):
        models = [row["model"] for row in found if row["at_s"] // 60 == minute]
        counts = sorted((models.count(name) for name in set(models)), reverse=True)
        assert counts[0] / len(models) == pytest.approx(zipf_shares(10, 1.5)[0], rel=0.1)
        favourites.append(max(set(models), key=models.count))
    assert favourites[0] == "model-0"
    assert len(set(favourites)) >= 4


def test_models_are_the_same_for_any_batches_of_times() -> None:
    def drawn(parts: int) -> list[int]:
        popularity = Popularity(models=9, exponent=0.9, drift_s=3.0, rng=np.random.default_rng(1))
        cut = np.array_split(np.linspace(0.0, 100.0, 500), parts)
        return [int(model) for part in cut for model in popularity.models_at(part)]

    assert drawn(1) == drawn(7) == drawn(500)


def test_models_are_dealt_to_tenants_in_turn() -> None:
    found = named("poisson:rate=50,duration=1m,names=a/b/c,tenants=2")
    pairs = {(row["tenant"], row["model"]) for row in found}
    assert pairs == {("tenant-0", "a"), ("tenant-1", "b"), ("tenant-0", "c")}
    assert set(column(named("poisson:rate=50,duration=1m,tenant=t"), "tenant")) == {"t"}


def test_a_very_long_trace_starts_at_once() -> None:
    trace = open_trace("poisson:rate=1000,duration=1000000h,models=100,zipf=1", seed=1)
    assert next(iter(trace)).num_rows > 1000
