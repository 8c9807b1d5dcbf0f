from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from load.errors import TraceError, UndeclaredModels
from load.trace_spec import open_trace
from load.traces.batches import BATCH_ROWS, summarise
from load.traces.transforms import declared_only
from tests.load.rows import column, named, rows, write

POISSON = "poisson:rate=20,models=5,zipf=0.9,duration=1m"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Functions f0 to f6, one call a second each, in this order of first arrival."""
    lines = [f"{second + index / 10},f{index}" for second in range(3) for index in range(7)]
    return write(tmp_path / "calls.csv", "at_s,model\n" + "\n".join(lines) + "\n")


def _by_function(calls: Path, mapping: str, seed: int = 1) -> list[str]:
    """The models of the first seven arrivals, which are of seven functions."""
    return column(named(f"{calls}|map={mapping}", seed), "model")[:7]


def test_maps_round_robin(calls: Path) -> None:
    models = _by_function(calls, "a/b/c")
    assert models == ["a", "b", "c", "a", "b", "c", "a"]
    assert column(named(f"{calls}|map=a/b/c"), "model") == models * 3


def test_mapped_models_belong_to_one_tenant(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "at_s,tenant,model\n0,a,f\n1,b,f\n2,a,f\n")
    found = named(f"{path}|map=x/y,tenant=t")
    assert [(row["tenant"], row["model"]) for row in found] == [("t", "x"), ("t", "y"), ("t", "x")]


@pytest.mark.parametrize("factor", [0.25, 1.0, 1.5, 3.0])
def test_rate_scales_arrivals_and_keeps_duration_and_shares(factor: float) -> None:
    base = summarise(open_trace(f"{POISSON}|rate=10", seed=1))
    scaled = summarise(open_trace(f"{POISSON}|rate=10|rate={factor}", seed=1))
    assert scaled.arrivals == pytest.approx(factor * base.arrivals, rel=0.05)
    assert scaled.last_s == pytest.approx(base.last_s, rel=0.05)
    share = base.models["default/model-0"] / base.arrivals
    assert scaled.models["default/model-0"] / scaled.arrivals == pytest.approx(share, rel=0.1)


def test_rate_of_one_changes_nothing() -> None:
    assert named(f"{POISSON}|rate=1") == named(POISSON)


def test_whole_rates_keep_every_arrival(calls: Path) -> None:
    base, scaled = named(str(calls)), named(f"{calls}|rate=2")
    counts = Counter(column(scaled, "model"))
    assert counts == Counter(2 * column(base, "model"))
    assert set(column(base, "at_s")) <= set(column(scaled, "at_s"))


def test_rps_gives_the_requested_mean() -> None:
    found = summarise(open_trace(f"{POISSON}|rps=55", seed=1))
    assert found.arrivals / found.last_s == pytest.approx(55.0, rel=0.05)


def test_a_large_rate_comes_in_even_batches(calls: Path) -> None:
    sizes = [batch.num_rows for batch in open_trace(f"{calls}|rate=9999.5", seed=1)]
    assert sum(sizes) == pytest.approx(21 * 9999.5, rel=0.01)
    assert max(sizes) == BATCH_ROWS


def test_rps_refuses_too_many_copies(calls: Path) -> None:
    with pytest.raises(TraceError, match=r"times the trace's own rate; at most 10000"):
        named(f"{calls}|rps=10000000")


def test_rps_refuses_a_trace_without_duration(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "at_s,model\n0,m\n0,m\n")
    with pytest.raises(TraceError, match="arrivals are all at its start; it has 2"):
        named(f"{path}|rps=5")


def test_speed_shortens_and_shift_delays(calls: Path) -> None:
    base = np.array(column(named(str(calls)), "at_s"))
    assert column(named(f"{calls}|speed=2"), "at_s") == pytest.approx(base / 2)
    assert column(named(f"{calls}|shift=90s"), "at_s") == pytest.approx(base + 90)


def test_slice_is_relative_to_its_start_and_excludes_its_end(calls: Path) -> None:
    assert column(named(f"{calls}|slice=1s:2s"), "at_s") == pytest.approx(np.arange(7) / 10)
    assert len(named(f"{calls}|slice=2s:")) == 7
    assert len(named(f"{calls}|slice=:2s")) == 14
    assert named(f"{calls}|slice=1h:") == []


def test_slice_reads_no_further_than_its_end(tmp_path: Path) -> None:
    lines = "".join(f"{index / 8},m,{'x' * 90}\n" for index in range(60_000))
    path = write(tmp_path / "t.csv", f"at_s,model,note\n{lines}bad,m,\n")
    assert len(named(f"{path}|slice=:10s")) == 80


def test_limit_and_top_and_only(calls: Path) -> None:
    assert column(named(f"{calls}|limit=3"), "model") == ["f0", "f1", "f2"]
    assert set(column(named(f"{calls}|only=f3/f5"), "model")) == {"f3", "f5"}
    assert set(column(named(f"{calls}|top=2"), "model")) == {"f0", "f1"}  # by name where equal
    busiest = summarise(open_trace(POISSON, seed=1)).models
    kept = summarise(open_trace(f"{POISSON}|top=2", seed=1)).models
    assert kept == dict(sorted(busiest.items(), key=lambda item: -item[1])[:2])


def test_only_reports_models_that_never_occur(calls: Path) -> None:
    with pytest.raises(TraceError, match=r"no arrival is for f9; there are: f0, f1, .* f6"):
        named(f"{calls}|only=f1/f9")


def test_an_undeclared_model_is_reported_with_its_arrival(calls: Path) -> None:
    trace = open_trace(str(calls), seed=1)
    known = [f"default/f{index}" for index in range(7)]
    assert rows(declared_only(trace, known)) == rows(trace)
    expected = r"arrival 3 \(at 0\.2 s\) is for default/f2, which is not declared; there are: de"
    with pytest.raises(TraceError, match=expected):
        rows(declared_only(trace, ["default/f0", "default/f1"]))
    with pytest.raises(TraceError, match=r"arrival 1 .*; there are none"):
        rows(declared_only(trace, []))


def test_all_undeclared_models_are_listed(calls: Path) -> None:
    trace = open_trace(str(calls), seed=1)
    with pytest.raises(UndeclaredModels) as caught:
        rows(declared_only(trace, ["default/f0", "default/f4"]))
    assert caught.value.models == [f"default/f{index}" for index in (1, 2, 3, 5, 6)]


def test_sets_tenant_model_and_sizes(calls: Path) -> None:
    found = named(f"{calls}|tenant=t|model=m|input=5:7|output=64")
    assert {(row["tenant"], row["model"], row["output_size"]) for row in found} == {("t", "m", 64)}
    assert set(column(found, "input_size")) == {5, 6, 7}


def test_a_deadline_for_all(calls: Path) -> None:
    assert set(column(named(f"{calls}|deadline=1m30s"), "deadline_s")) == {90.0}


def test_a_deadline_by_latency_is_drawn_once_per_model(calls: Path) -> None:
    found = named(f"{calls}|deadline=latency,latency=3s")
    by_model = {(row["model"], row["deadline_s"]) for row in found}
    assert len(by_model) == 7
    assert len({deadline for _, deadline in by_model}) == 7
    assert all(6.5 <= deadline < 7.0 for _, deadline in by_model)
    later = named(f"{calls}|slice=1.5s:|deadline=latency,latency=3s")
    assert {(row["model"], row["deadline_s"]) for row in later} == by_model
