"""The cells of the experiment regret: ranges, halves, arrivals."""

from itertools import islice

import numpy as np
import pytest

from load.trace_spec import open_trace
from research.experiments.regret.cells import Half, RegretCell, cells, drawn_cell
from research.experiments.regret.runs import cluster

MANY = list(islice(cells(), 200))


def test_a_cell_depends_on_its_number_alone() -> None:
    assert drawn_cell(7) == drawn_cell(7) == MANY[7]
    assert drawn_cell(7) != drawn_cell(8)


def test_cells_cover_the_stated_ranges() -> None:
    assert {len(each.slots) for each in MANY} == set(range(2, 9))
    ratios = [each.load_ratio for each in MANY]
    assert 1 <= min(ratios) < 2 < 200 < max(ratios) <= 400
    assert {each.arrivals for each in MANY} == {"poisson", "gamma", "on-off"}
    memory = [each.memory for each in MANY if len(set(each.sizes)) == 1]
    assert min(memory) < 0.35
    assert max(memory) > 1.3
    assert all(0 <= each.zipf <= 1.2 for each in MANY)
    for has in (
        [each.drift_s is not None for each in MANY],
        [each.deadline_s is not None for each in MANY],
        [len(set(each.speeds)) > 1 for each in MANY],
        [len(set(each.sizes)) > 1 for each in MANY],
        [each.preprocess_s > 0 for each in MANY],
        [each.postprocess_s > each.infer_s for each in MANY],
        [each.is_link_shared for each in MANY],
    ):
        assert 0.05 < np.mean(has) < 0.95


def test_every_cell_belongs_to_one_half() -> None:
    chosen = {each.number for each in islice(cells(Half.CHOOSE), 50)}
    reported = {each.number for each in islice(cells(Half.REPORT), 50)}
    assert not chosen & reported
    assert {each.number for each in MANY[:60]} <= chosen | reported | set(range(80, 200))


def test_every_pod_has_room_for_every_model() -> None:
    for each in MANY:
        plan = cluster(each)
        largest = max(model.memory_bytes for model in plan.models)
        assert all(pod.memory_bytes >= largest for node in plan.nodes for pod in node.pods)


@pytest.mark.parametrize("arrivals", ["poisson", "gamma", "on-off"])
def test_arrivals_have_the_rate_of_their_cell(arrivals: str) -> None:
    found: list[RegretCell] = [each for each in MANY if each.arrivals == arrivals][:3]
    for each in found:
        counts = [
            sum(batch.num_rows for batch in open_trace(each.trace, seed=seed)) for seed in range(5)
        ]
        assert np.mean(counts) == pytest.approx(each.rate * each.duration_s, rel=0.3)
