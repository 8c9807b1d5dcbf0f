"""The experiment warsaw: its published figures, its workload, and short runs."""

import csv
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from research.experiments.harness.experiment import ExperimentError, Settings
from research.experiments.harness.published_figures import published_figures
from research.experiments.schedulers.figures import draw_machines, draw_schedulers
from research.experiments.schedulers.runs import SchedulerResult, SchedulerTask, cluster, simulate
from research.experiments.schedulers.scheduler_configs import (
    BASELINE,
    CLOCKWORK,
    OF_THESIS,
    SCHEDULERS,
    SHIPPED,
    scheduler_config,
)
from research.experiments.schedulers.setting import (
    GATEWAY,
    MAIN,
    OVERLAPPING,
    THESIS,
    VARIED,
    Setting,
)
from research.experiments.schedulers.thesis_comparison import CLAIMS, by_seed
from research.experiments.schedulers.warsaw import FILE, run
from research.experiments.schedulers.workload import MODELS, Workload, deadlines_s

SHORT = Workload(minutes=2, spikes=1, rate_per_min=600.0, work=(0.6, 0.9), most_busy=0.3)


def _data(name: str) -> Path:
    folder = os.environ.get("PILOTLIGHT_DATA")
    path = Path(folder or "") / name
    if not folder or not path.is_file():
        pytest.skip(f"{name} is not in the folder that PILOTLIGHT_DATA names")
    return path


def _rows(name: str) -> list[dict[str, str]]:
    with _data(name).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_times_and_sizes_are_those_of_the_source() -> None:
    latencies = {
        row["model"]: float(row["latency_ms"]) / 1000
        for row in _rows("tiger_dnn_latency.csv")
        if row["instance"] == "c5.18xlarge"
    }
    loads = {
        row["model"]: float(row["load_time_s_at_4096_mbit_per_s"])
        for row in _rows("tiger_model_sizes.csv")
    }
    assert latencies == pytest.approx({each.name: each.infer_s for each in MODELS})
    assert loads == pytest.approx({each.name: each.load_s for each in MODELS}, abs=1e-6)


def test_sizes_of_improvements_are_read_from_the_data_folder() -> None:
    facts = published_figures(Settings(data=_data(FILE).parent), FILE)
    sizes = {each.label: each.reported(facts) for each in CLAIMS if each.fact is not None}
    assert sorted(size for size in sizes.values() if size is not None) == [-70.0, -1.6]


def test_a_file_of_figures_without_their_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("number,figure\n6,70\n", encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"warsaw_facts\.csv: must have the columns id"):
        run(Settings(data=tmp_path))


def test_load_is_steady_except_for_spikes() -> None:
    work = Workload()
    for seed in (1, 2, 3):
        counts = work.counts(seed).sum(axis=1)
        spikes = work.spike_minutes(seed)
        in_spike = {minute for first, end in spikes for minute in range(first, end)}
        steady = [count for minute, count in enumerate(counts) if minute not in in_spike]
        assert len(counts) == 30
        assert len(in_spike) == 6
        assert np.mean(steady) == pytest.approx(1700, rel=0.05)
        assert max(counts[minute] for minute in in_spike) > 1.3 * np.mean(steady)


def test_no_model_alone_saturates_a_machine_in_steady_time() -> None:
    work = Workload()
    for seed in (1, 2, 3):
        [(first, _), *_] = work.spike_minutes(seed)
        rates = work.counts(seed)[:first].mean(axis=0) / 60
        busy = rates * [each.infer_s for each in MODELS]
        assert busy.max() < 1.0
        assert work.work[0] * 0.8 < busy.sum() < work.work[1] * 1.2


def test_deadlines_are_drawn_once_per_model_and_seed() -> None:
    for each in MODELS:
        slack_s = deadlines_s(1)[each.name] - 2 * each.infer_s
        assert 0.5 <= slack_s <= 1.0
    assert deadlines_s(1) == deadlines_s(1) != deadlines_s(2)


def test_one_seed_gives_one_trace_sorted_and_with_deadlines() -> None:
    [first], [again] = (list(SHORT.trace(1)) for _ in range(2))
    assert first.equals(again)
    assert np.all(np.diff(first.column("at_s").to_numpy()) >= 0)
    assert first.column("deadline_s").null_count == 0
    assert first.num_rows == SHORT.counts(1).sum()


def test_a_workload_that_no_draw_fits_is_refused() -> None:
    with pytest.raises(ExperimentError, match="no draw of functions keeps 50 to 60 machines busy"):
        Workload(work=(50.0, 60.0)).counts(1)


@pytest.mark.parametrize("setting", VARIED)
def test_machines_hold_as_many_models_as_the_setting_says(setting: Setting) -> None:
    plan = cluster(setting, 1)
    [pod] = plan.nodes[0].pods
    assert len(plan.nodes) == setting.machines
    assert pod.slots == 1
    assert {pod.memory_bytes // each.memory_bytes for each in plan.models} == {setting.models_each}


@pytest.mark.parametrize("setting", VARIED)
def test_the_load_of_every_setting_can_be_drawn(setting: Setting) -> None:
    work = setting.workload(Workload(minutes=8, spikes=1))
    for seed in (1, 2, 3):
        [(first, _), *_] = work.spike_minutes(seed)
        rates = work.counts(seed)[:first].mean(axis=0) / 60
        busy = sum(rates * [each.infer_s for each in MODELS])
        assert 0.6 * work.work[0] < busy < 1.4 * work.work[1]


@pytest.fixture(scope="module")
def short_runs() -> Mapping[str, SchedulerResult]:
    """All schedulers on two minutes."""
    tasks = [SchedulerTask(name, 1, SHORT, machine="machine-00") for name in SCHEDULERS]
    return {each.scheduler: simulate(each) for each in tasks}


def test_every_request_is_served_and_counted_once(
    short_runs: Mapping[str, SchedulerResult],
) -> None:
    expected = int(SHORT.counts(1).sum())
    for name, found in short_runs.items():
        assert found.requests == sum(found.arrivals) == expected, name
        # A load that a request began gives up after 30 s where models in use hold the memory.
        assert found.unanswered <= (expected // 1000 if name == SHIPPED else 0), name
        assert sum(found.misses) == round(found.missed * expected), name


def test_baseline_loads_a_model_once_and_round_robin_repeatedly(
    short_runs: Mapping[str, SchedulerResult],
) -> None:
    """Twelve places for nine models: Baseline never has to unload one."""
    requested = np.count_nonzero(SHORT.counts(1).sum(axis=0))
    assert short_runs[BASELINE].loads == requested
    assert short_runs["round-robin"].loads > 2 * requested
    assert short_runs["+ renewed quantum"].loads < short_runs["round-robin"].loads


def test_the_same_run_gives_the_same_result(short_runs: Mapping[str, SchedulerResult]) -> None:
    again = simulate(SchedulerTask(CLOCKWORK, 1, SHORT))
    assert again.curve_s == short_runs[CLOCKWORK].curve_s
    assert again.load_s == short_runs[CLOCKWORK].load_s


def test_in_a_spike_baseline_has_one_copy_and_clockwork_more() -> None:
    """All functions eight times as often: one machine cannot serve the requests of one model."""
    work = Workload(
        minutes=2,
        spikes=1,
        rate_per_min=300.0,
        work=(0.3, 0.5),
        most_busy=0.3,
        height=8.0,
        spiking_share=1.0,
    )
    eight = Setting("8 x 2", machines=8)
    before, after = (
        simulate(SchedulerTask(name, 1, work, eight)) for name in (BASELINE, CLOCKWORK)
    )
    assert after.missed_in_spikes < before.missed_in_spikes
    assert after.longest_s < before.longest_s


def test_every_claim_has_a_change_for_every_seed(short_runs: Mapping[str, SchedulerResult]) -> None:
    [runs] = by_seed(list(short_runs.values()))
    for claim in CLAIMS:
        assert np.isfinite(claim.change(runs)), claim.label
        assert claim.holds(runs) == (
            (claim.change(runs) < 0) is claim.is_fewer
        ) or not claim.change(runs)


def test_only_the_shipped_gateway_starts_loads_itself() -> None:
    assert [name for name in SCHEDULERS if scheduler_config(name).queueing.may_load] == [SHIPPED]
    assert all(scheduler_config(name).queueing.serves_late for name in SCHEDULERS)


def test_the_thesiss_schedulers_start_inferences_by_its_rules() -> None:
    for name in SCHEDULERS:
        is_of_thesis = name in OF_THESIS
        for inference in (THESIS, OVERLAPPING):
            placer = scheduler_config(name, Setting("", inference=inference)).queueing.placer
            assert isinstance(placer, partial) is is_of_thesis
            if isinstance(placer, partial):
                assert placer.keywords["is_serial"] is (inference == THESIS)
        assert scheduler_config(name, Setting("", inference=GATEWAY)).queueing.placer is None


def test_a_machine_that_does_one_action_at_a_time_serves_nothing_while_it_loads(
    short_runs: Mapping[str, SchedulerResult],
) -> None:
    for name in OF_THESIS:
        usage = short_runs[name].usage
        inferring = np.concatenate(
            [np.stack([each.inferring.begins, each.inferring.ends]) for each in usage], axis=1
        )
        for each in usage:
            for begin_s, end_s in zip(each.loading.begins, each.loading.ends, strict=True):
                overlap_s = np.minimum(inferring[1], end_s) - np.maximum(inferring[0], begin_s)
                assert overlap_s.max(initial=0.0) <= 1e-6, (name, each.model)


def test_recorded_use_includes_loads_that_no_request_waited_for(
    short_runs: Mapping[str, SchedulerResult],
) -> None:
    """Requests wait in the queue for loads of the scheduler, so records show none of them."""
    found = short_runs["round-robin"]
    begins = np.concatenate([each.loading.begins for each in found.usage])
    assert len(begins) > found.loads / MAIN.machines / 4
    for each in found.usage:
        assert np.all(each.loaded.begins >= each.loading.begins[0])
        assert each.loaded.total_s >= each.inferring.total_s


def test_time_to_schedule_is_before_the_inference(
    short_runs: Mapping[str, SchedulerResult],
) -> None:
    for name, found in short_runs.items():
        assert 0 <= found.wait_s < found.mean_s, name
        assert sum(found.answered) <= found.requests - found.unanswered


def test_the_plots_are_written(short_runs: Mapping[str, SchedulerResult], tmp_path: Path) -> None:
    runs = list(short_runs.values())
    for path in (draw_schedulers(runs, tmp_path), draw_machines(runs[:2], (0, 120), tmp_path)):
        assert path.read_bytes().startswith(b"\x89PNG")
