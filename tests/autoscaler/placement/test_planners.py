"""What holds for every planner, and plans on a synthetic profile."""

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations_with_replacement, product

import pytest

from autoscaler.place import plan_and_compare
from autoscaler.placement import planner_of
from autoscaler.placement.placement_input import PlacementInput
from autoscaler.placement.problem import (
    FITS_PCT,
    AcceleratorView,
    BatchPoint,
    InvalidPlacementInput,
    Metric,
    ModelProfile,
    PlanParams,
    Profiles,
    Workload,
)
from registry.domain.records import PlacedReplica
from research.placement import goodput_program
from research.placement.fleet import accelerators_of, gap_ratio, used_by
from tests.autoscaler.placement.cases import (
    KIND,
    batches,
    plan_fewest,
    planned,
    profile_of,
    random_profiles,
    random_workloads,
    replicas_of,
    workloads,
)

METRICS = {
    "usher": Metric.ACHIEVED_OCCUPANCY,
    "ao-milp": Metric.ACHIEVED_OCCUPANCY,
    "wao-usher": Metric.MEAN_OCCUPANCY,
    "wao-milp": Metric.MEAN_OCCUPANCY,
    "wsm-usher": Metric.SM_UTILIZATION,
    "wsm-milp": Metric.SM_UTILIZATION,
}
"""What each of these adds up to 100 % of an accelerator."""
ADDITIVE = list(METRICS)


def overfull(
    replicas: Sequence[PlacedReplica],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    metric: Metric,
) -> list[str]:
    """Accelerators whose replicas need over 100 % of compute or memory, or repeat a model."""
    kinds = {each.name: each.kind for each in accelerators}
    compute: defaultdict[str, float] = defaultdict(float)
    memory: defaultdict[str, float] = defaultdict(float)
    models: defaultdict[str, list[str]] = defaultdict(list)
    for each in replicas:
        point = profiles.point(each.model, kinds[each.accelerator], each.batch_size)
        assert point is not None
        compute[each.accelerator] += point.compute_pct(metric)
        memory[each.accelerator] += point.memory_pct
        models[each.accelerator].append(each.model)
    return sorted(
        name
        for name, placed in models.items()
        if compute[name] > FITS_PCT or memory[name] > FITS_PCT or len(placed) != len(set(placed))
    )


MILPS = [name for name in ADDITIVE if name.endswith("milp")]


@pytest.mark.parametrize(
    ("planner", "gpus", "goodput"),
    [
        # usher: `large` needs 400 / 125, so 4 replicas: on 3 GPUs it is not served at all.
        pytest.param("usher", 3, 1200.0, id="usher-3"),
        # The first group places `large`, whose needs are highest, on all four GPUs first.
        pytest.param("ao-milp", 3, 1325.0, id="ao-milp-3"),
        pytest.param("ao-milp", 4, 1450.0, id="ao-milp-4"),
        pytest.param("wsm-milp", 3, 1450.0, id="wsm-milp-3"),
        pytest.param("wao-milp", 3, 1575.0, id="wao-milp-3"),
    ],
)
def test_goodput_on_synthetic_profiles(
    synthetic: Profiles, planner: str, gpus: int, goodput: float
) -> None:
    loads = workloads("large medium small wide", 400, 150)
    found = planned(planner, loads, gpus, synthetic)
    assert found.total_rps == pytest.approx(goodput, abs=0.01)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("planner", ADDITIVE)
def test_capacities_hold_and_the_order_of_input_is_irrelevant(planner: str, seed: int) -> None:
    rng = random.Random(seed)
    models, gpus = rng.randint(1, 5), rng.randint(1, 4)
    profiles, loads = random_profiles(rng, models), random_workloads(rng, models)
    accelerators = accelerators_of(KIND, gpus)
    found = planner_of(planner)(loads, accelerators, profiles, (), PlanParams())
    assert overfull(found.replicas, accelerators, profiles, METRICS[planner]) == []
    assert found.total_rps <= found.bound_rps + 1e-6
    assert sum(each.rate_rps for each in found.replicas) == pytest.approx(
        sum(load.rate_rps for load in loads if replicas_of(found, load.model))
    )
    turned = planner_of(planner)(
        loads[::-1],
        accelerators[::-1],
        Profiles(profiles.models[::-1]),
        found.replicas,
        PlanParams(),
    )
    assert turned == found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("metric", ["ao", "wao", "wsm"])
@pytest.mark.parametrize("steepest", [2.2, 3.2])
def test_the_milp_equals_brute_force_and_no_usher_exceeds_it(
    metric: str, seed: int, steepest: float
) -> None:
    rng = random.Random(f"{metric}{seed}")
    profiles = random_profiles(rng, 3, sizes=2, steepest=steepest)
    loads = random_workloads(rng, 3)
    milp = f"{metric}-milp"
    found = planned(milp, loads, 3, profiles)
    total_rps, replicas, batch_sum = _brute_force(loads, 3, profiles, milp)
    assert found.total_rps == pytest.approx(total_rps, abs=1e-4)
    assert gap_ratio(found) == pytest.approx(0, abs=1e-6)
    assert len(found.replicas) == replicas
    assert sum(each.batch_size for each in found.replicas) == batch_sum
    usher = "usher" if metric == "ao" else f"{metric}-usher"
    assert planned(usher, loads, 3, profiles).total_rps <= found.total_rps + 1e-4


def _brute_force(
    loads: Sequence[Workload], gpus: int, profiles: Profiles, planner: str
) -> tuple[float, int, int]:
    """Every batch of every model, and every set of models on every GPU: the most goodput.

    Then the fewest replicas with it, and the smallest sum of batches.
    """
    best = 0.0, 0, 0
    choices = [profiles.feasible(load, KIND) or (None,) for load in loads]
    for chosen in product(*choices):
        fitting = [
            subset
            for subset in product((0, 1), repeat=len(loads))
            if sum(
                u * p.compute_pct(METRICS[planner])
                for u, p in zip(subset, chosen, strict=True)
                if p
            )
            <= 100
            and sum(u * p.memory_pct for u, p in zip(subset, chosen, strict=True) if p) <= 100
        ]
        for cluster in combinations_with_replacement(fitting, gpus):
            counts = [sum(used) for used in zip(*cluster, strict=True)]
            placed = [each for each in zip(loads, chosen, counts, strict=True) if each[1]]
            total = sum(min(load.rate_rps, n * p.throughput_rps) for load, p, n in placed if p)
            sizes = sum(n * p.batch_size for _, p, n in placed if p)
            found = round(total, 6), -sum(n for *_, n in placed), -sizes
            best = max(best, found)
    return best[0], -best[1], -best[2]


def test_a_larger_batch_of_less_throughput_cuts_no_plan_off() -> None:
    """Elvinger 2024, table A.1: with larger batches xlnet serves less."""
    profiles = Profiles(
        (
            profile_of("bert", (4, 0.0341, 3.47, 85.89), (8, 0.0658, 4.06, 88.46)),
            profile_of(
                "xlnet",
                (4, 0.1088, 5.22, 95.76),
                (8, 0.2713, 7.37, 97.62),
                (16, 0.6138, 12.57, 97.60),
                (32, 1.2668, 22.09, 94.45),
            ),
        )
    )
    loads = [Workload("xlnet", 35, 1.5), Workload("bert", 25.9, 4.0)]
    found = planned("ao-milp", loads, 1, profiles)
    assert (found.total_rps, gap_ratio(found)) == (35.0, 0.0)


def test_a_plan_that_the_solvers_presolve_calls_optimal_is_not_taken_as_such() -> None:
    """HiGHS 1.15.1 with its presolve: 428.58 req/s, `b` on every GPU in batches of 4."""
    profiles = Profiles(
        (
            profile_of("a", (4, 0.0283, 44, 44), (8, 0.045, 41, 32), (16, 0.1062, 41, 44)),
            profile_of("b", (4, 0.028, 10, 71), (8, 0.0616, 47, 41), (16, 0.19, 19, 63)),
        )
    )
    loads = [Workload("a", 63.1, 0.1), Workload("b", 647.1, 0.5)]
    found = planned("ao-milp", loads, 3, profiles)
    assert found.total_rps == pytest.approx(63.1 + 3 * 129.87)
    assert (batches(found, "a"), batches(found, "b")) == ([4], [8, 8, 8])


def test_usher_places_a_multiple_of_the_fewest_replicas_where_the_milp_places_what_serves() -> None:
    """`b` needs 2 replicas in batches of 8, which do not fit beside `a`, and 3 in batches of 4."""
    profiles = Profiles(
        (
            profile_of("a", (4, 0.04, 50, 50)),
            profile_of("b", (4, 0.04, 20, 45), (8, 0.0575, 20, 80)),
        )
    )
    loads = [Workload("a", 400, 0.1), Workload("b", 250, 0.1)]
    assert batches(planned("usher", loads, 4, profiles), "b") == [4, 4, 4, 4]
    assert batches(planned("ao-milp", loads, 4, profiles), "b") == [4, 4, 4]


def test_the_milp_takes_the_fewest_replicas_and_smallest_batches(synthetic: Profiles) -> None:
    found = planned("ao-milp", workloads("medium small", 350, 150), 4, synthetic)
    assert (batches(found, "medium"), batches(found, "small")) == ([4], [4])


def test_the_milp_mixes_kinds_with_coefficients_of_each(synthetic: Profiles) -> None:
    faster = [
        ModelProfile(
            each.model,
            "h100",
            tuple(
                type(point)(
                    point.batch_size,
                    point.latency_s / 2,
                    point.throughput_rps * 2,
                    point.memory_pct / 4,
                    *(
                        value / 4
                        for value in (
                            point.occupancy_pct,
                            point.mean_occupancy_pct,
                            point.sm_utilization_pct,
                        )
                    ),
                )
                for point in each.points
            ),
        )
        for each in synthetic.models
    ]
    profiles = Profiles((*synthetic.models, *faster))
    mixed = [*accelerators_of("v100", 1), *accelerators_of("h100", 1)]
    loads = workloads("large medium small", 300, 150)
    found = planner_of("ao-milp")(loads, mixed, profiles, (), PlanParams())
    # One H100 holds all three; a second copy of `large` on the V100 completes its rate.
    assert found.total_rps == pytest.approx(900)
    assert {each.accelerator for each in replicas_of(found, "large")} == {"h100-0", "v100-0"}
    for usher in ("usher", "wao-usher", "wsm-usher"):
        with pytest.raises(InvalidPlacementInput, match="one kind"):
            planner_of(usher)(loads, mixed, profiles, (), PlanParams())


@pytest.mark.parametrize("planner", ADDITIVE)
def test_an_unservable_model_is_a_shortfall(synthetic: Profiles, planner: str) -> None:
    loads = [Workload("large", 10, 0.02), Workload("small", 10, 0.02, max_batch_size=2)]
    found = planned(planner, loads, 2, synthetic)
    assert found.replicas == ()
    reasons = {each.model: each.reason for each in found.models}
    assert "takes 40.0 ms, the SLO is 20 ms" in reasons["large"]
    assert "no measured batch is at most 2" in reasons["small"]


@pytest.mark.parametrize("planner", ADDITIVE)
def test_without_a_number_of_gpus_the_fewest_without_shortfall(
    synthetic: Profiles, planner: str
) -> None:
    loads = [*workloads("large medium small", 400, 150), Workload("wide", 10, 0.001)]
    found = plan_fewest(planner_of(planner), loads, synthetic)
    assert [each.model for each in found.models if each.reason] == ["wide"]
    count = len(used_by(found))
    fewer = planned(planner, loads, count - 1, synthetic)
    assert [each.model for each in fewer.models if each.reason] != ["wide"]


def test_shares_are_the_compute_need_unless_they_are_off(synthetic: Profiles) -> None:
    loads = workloads("medium small", 100, 150)
    shares = [each.share_pct for each in planned("wao-usher", loads, 2, synthetic).replicas]
    assert shares == [20.0, 10.0]
    without = planned("wao-usher", loads, 2, synthetic, PlanParams(has_shares=False))
    assert {each.share_pct for each in without.replicas} == {None}


def test_all_mistakes_are_reported_together(synthetic: Profiles) -> None:
    wrong = Profiles((*synthetic.models, ModelProfile("none", KIND, ())))
    loads = [
        Workload("large", float("nan"), 0.1),
        Workload("small", -1, 0.0),
        Workload("unknown", 1, 0.1),
        Workload("none", 1, 0.1),
    ]
    with pytest.raises(InvalidPlacementInput) as caught:
        planner_of("ao-milp")(loads, [AcceleratorView("a", KIND)], wrong, (), PlanParams())
    assert caught.value.problems == [
        "model large: must have a rate of 0 or more and a positive SLO, had nan req/s and 0.1 s",
        "model small: must have a rate of 0 or more and a positive SLO, had -1 req/s and 0.0 s",
        "model unknown: has no profile on v100; `pilotlight profile` measures one",
        "model none: has no profile on v100; `pilotlight profile` measures one",
    ]
    with pytest.raises(InvalidPlacementInput, match="at least one is needed"):
        planner_of("usher")([], [], synthetic, (), PlanParams())


@pytest.mark.parametrize("planner", ["usher", "wao-usher", "wsm-usher", "igniter"])
def test_planners_of_one_kind_refuse_others(synthetic: Profiles, planner: str) -> None:
    gpus = [AcceleratorView("a", KIND), AcceleratorView("b", "h100")]
    with pytest.raises(InvalidPlacementInput) as caught:
        planner_of(planner)([Workload("large", 10, 0.1)], gpus, synthetic, (), PlanParams())
    assert "accelerators must be of one kind for this planner" in str(caught.value)


def test_the_best_plan_within_the_limit_of_nodes_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(3)
    profiles, loads = random_profiles(rng, 6), random_workloads(rng, 6)
    heuristic = planned("wao-usher", loads, 6, profiles)
    best = planned("wao-milp", loads, 6, profiles)
    monkeypatch.setattr(goodput_program, "_MAX_NODES", 0)
    found = planned("wao-milp", loads, 6, profiles)
    assert 0 < found.total_rps <= found.bound_rps
    assert heuristic.total_rps <= found.total_rps <= best.total_rps + 1e-6


@pytest.mark.slow
def test_a_problem_with_too_many_patterns_is_solved_by_columns_with_its_gap() -> None:
    rng = random.Random(5)
    profiles, loads = random_profiles(rng, 24, sizes=4), random_workloads(rng, 24)
    accelerators = accelerators_of(KIND, 12)
    found = planner_of("wao-milp")(loads, accelerators, profiles, (), PlanParams())
    assert overfull(found.replicas, accelerators, profiles, METRICS["wao-milp"]) == []
    assert 0 <= gap_ratio(found) < 0.15
    assert found == planner_of("wao-milp")(loads[::-1], accelerators, profiles, (), PlanParams())
    assert found.total_rps > planned("wao-usher", loads, 12, profiles).total_rps


def test_a_plan_is_compared_with_what_runs() -> None:
    point = BatchPoint(4, 0.02, 200.0, 30, 40, 40, 40)
    loads = tuple(Workload(name, rate, 0.2) for name, rate in (("m0", 100.0), ("m1", 150.0)))
    profiles = Profiles(tuple(ModelProfile(each.model, KIND, (point,)) for each in loads))
    inputs = PlacementInput(loads, tuple(accelerators_of(KIND, 2)), profiles)
    found, gain_rps = plan_and_compare("ao-milp", inputs, (), PlanParams())
    assert found == planner_of("ao-milp")(loads, inputs.accelerators, profiles, (), PlanParams())
    assert gain_rps > 100
    _, gain_rps = plan_and_compare("ao-milp", inputs, found.replicas, PlanParams())
    assert gain_rps == pytest.approx(0.0)
