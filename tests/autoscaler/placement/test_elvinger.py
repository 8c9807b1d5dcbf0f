"""Plans that Elvinger 2024 states, from its table A.1 (the file is not part of this repository)."""

import pytest

from autoscaler.placement.problem import Profiles, Workload
from research.placement.fleet import gap_ratio, used_by
from research.placement.milp import WAO_USHER
from tests.autoscaler.placement.cases import VISION, batches, plan_fewest, planned, workloads

_WITHIN_RPS = 0.01
_GROUPS = "bert gpt2 resnet50 vgg19"


@pytest.mark.parametrize(
    ("models", "rps", "slo_ms", "planner", "gpus", "goodput"),
    [
        pytest.param("alexnet gpt2 resnet50 t5", 400, 200, "usher", 4, 800, id="5.4.1-order"),
        pytest.param("alexnet gpt2 resnet50 t5", 400, 200, "ao-milp", 4, 1092.04, id="5.8"),
        pytest.param(f"alexnet {_GROUPS}", 400, 300, "usher", 4, 793.57, id="5.6-caption"),
        pytest.param(f"mobilenet_v2 {_GROUPS}", 400, 300, "usher", 4, 793.57, id="5.6-text"),
        pytest.param(f"alexnet {_GROUPS}", 400, 300, "ao-milp", 4, 1331.19, id="5.9"),
        pytest.param(
            "bert gpt2 mobilenet_v2 resnet50", 300, 300, "wsm-milp", 5, 1096.80, id="6.12"
        ),
    ],
)
def test_expected_goodput(
    v100: Profiles, models: str, rps: float, slo_ms: float, planner: str, gpus: int, goodput: float
) -> None:
    found = planned(planner, workloads(models, rps, slo_ms), gpus, v100)
    assert found.total_rps == pytest.approx(goodput, abs=_WITHIN_RPS)


def test_the_milp_takes_the_batch_of_most_throughput(v100: Profiles) -> None:
    loads = [Workload("xlnet", 35, 1.5), Workload("bert", 25.9, 4.0)]
    found = planned("ao-milp", loads, 1, v100)
    assert (found.total_rps, gap_ratio(found)) == (35.0, 0.0)


def test_usher_leaves_a_gpu_idle_that_the_milp_uses(v100: Profiles) -> None:
    loads = workloads("alexnet bert mobilenet_v2 resnet50", 500, 200)
    found = planned("usher", loads, 4, v100)
    assert found.total_rps == pytest.approx(1500, abs=_WITHIN_RPS)
    assert len(used_by(found)) == 3
    assert len(used_by(planned("ao-milp", loads, 4, v100))) == 4


@pytest.mark.parametrize(("gpus", "expected"), [(3, [16]), (4, [8, 8]), (6, [8, 8])])
def test_usher_replicates_efficientnet(v100: Profiles, gpus: int, expected: list[int]) -> None:
    found = planned("usher", workloads(VISION, 500, 200), gpus, v100)
    assert batches(found, "efficientnet_b7") == expected


def test_usher_serves_the_vision_models_in_full_on_six_gpus(v100: Profiles) -> None:
    found = plan_fewest(WAO_USHER, workloads(VISION, 500, 200), v100)
    assert not any(each.reason for each in found.models)
    six = planned("usher", workloads(VISION, 500, 200), 6, v100)
    assert (six.total_rps, len(used_by(six))) == (2500, 6)


def test_wao_usher_shares_three_gpus(v100: Profiles) -> None:
    found = planned("wao-usher", workloads("bert gpt2 mobilenet_v2 resnet50", 300, 300), 4, v100)
    assert len(used_by(found)) == 3
    for gpu in used_by(found):
        assert {"bert", "gpt2"} <= {
            each.model for each in found.replicas if each.accelerator == gpu
        }


@pytest.mark.slow
def test_wsm_milp_by_load_is_figure_6_16(v100: Profiles) -> None:
    plans = {
        rps: planned("wsm-milp", workloads(VISION, rps / 5, 250), 4, v100)
        for rps in (3000, 4000, 5000)
    }
    for model in VISION.split():
        if model != "vgg19":
            assert batches(plans[3000], model) == batches(plans[4000], model)
    assert (batches(plans[3000], "vgg19"), batches(plans[4000], "vgg19")) == ([16], [128])
    assert batches(plans[5000], "densenet121") == [8, 8, 8]
    assert batches(plans[5000], "resnet50") == [4, 4]
