import pytest

from registry.domain.estimates import (
    PRIORS,
    UNMEASURED,
    WINDOW,
    Estimate,
    Measurements,
    ModelEstimates,
)
from registry.domain.model import Tier
from registry.domain.pod import AcceleratorKind


def measured(**samples: list[float]) -> ModelEstimates:
    measurements = ModelEstimates()
    for measure, values_s in samples.items():
        measurements.add(measure.replace("_", ":"), values_s)
    return measurements


def test_without_measurements_estimates_are_priors() -> None:
    assert UNMEASURED.infer == Estimate(PRIORS.infer_s, is_measured=False)
    assert UNMEASURED.load_from(Tier.REMOTE, None) == Estimate(PRIORS.load_s, is_measured=False)
    assert UNMEASURED.get("infer") is None
    with pytest.raises(TypeError, match="belongs to all models"):
        UNMEASURED.add("infer", [1.0])


def test_the_median_of_measurements_replaces_the_prior() -> None:
    assert measured(infer=[1.0, 9.0, 2.0]).infer == Estimate(2.0, is_measured=True)
    assert not measured(infer=[]).infer.is_measured


def test_the_median_follows_a_change_within_the_window() -> None:
    measurements = measured(infer=[1.0] * 1000)
    measurements.add("infer", [5.0] * (WINDOW // 2 + 1))
    assert measurements.infer.seconds == 5.0


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK, Tier.REMOTE])
def test_a_load_is_estimated_from_its_own_tier_first(tier: Tier) -> None:
    known = measured(load_host=[0.1], load_disk=[1.0], load_remote=[9.0])
    expected = {Tier.HOST: 0.1, Tier.DISK: 1.0, Tier.REMOTE: 9.0}[tier]
    assert known.load_from(tier, 1.0) == Estimate(expected, is_measured=True)


def test_only_a_slower_tier_bounds_an_unmeasured_one() -> None:
    assert measured(load_disk=[1.0]).load_from(Tier.HOST, None) == Estimate(1.0, is_measured=False)
    assert not measured(load_host=[0.1]).load_from(Tier.REMOTE, None).is_measured
    assert measured(load_host=[0.1]).load_from(Tier.REMOTE, None).seconds == PRIORS.load_s


def test_a_tier_never_loaded_from_takes_the_part_of_the_time_from_remote_that_others_take() -> None:
    table = Measurements().at(WHOLE)
    table.add("new", "load:remote", [4.0])
    assert table["new"].fastest_load_s == 4.0
    table.add("other", "load:remote", [8.0])
    table.add("other", "load:disk", [2.0, 2.2, 1.8])
    for seen in (table, table.slowed(2.0)):
        for tier in (Tier.DISK, Tier.HOST):
            assert seen["new"].load_from(tier, None) == Estimate(1.0, is_measured=False)
        assert seen["new"].fastest_load_s == 1.0
        assert seen["new"].load_from(Tier.REMOTE, None) == Estimate(4.0, is_measured=True)
    table.add("other", "load:disk", [80.0] * WINDOW)
    assert table["new"].load_from(Tier.DISK, None).seconds == 4.0


def test_a_known_link_rate_gives_the_prior_of_a_load_from_storage() -> None:
    seconds = PRIORS.load_bytes / 1e8
    assert UNMEASURED.load_from(Tier.REMOTE, 1e8) == Estimate(seconds, is_measured=False)
    assert UNMEASURED.load_from(Tier.DISK, 1e8).seconds == PRIORS.load_s


def test_without_batching_the_share_is_the_whole_inference() -> None:
    assert measured(infer=[2.0]).stages.share_s == 2.0
    assert measured(infer=[2.0], share=[0.5]).stages.share_s == 0.5


WHOLE, HALF, TENTH = (AcceleratorKind("H200", share) for share in (1.0, 0.5, 0.1))
CPU = AcceleratorKind("EPYC")


def test_every_kind_has_estimates_of_its_own() -> None:
    measurements = Measurements()
    measurements.at(WHOLE).add("m", "infer", [0.1])
    measurements.at(CPU).add("m", "infer", [1.0])
    assert measurements.at(WHOLE)["m"].infer == Estimate(0.1, is_measured=True)
    assert measurements.at(CPU)["m"].infer == Estimate(1.0, is_measured=True)


def test_an_unmeasured_kind_takes_the_nearest_share_of_its_product() -> None:
    measurements = Measurements()
    assert measurements.at(TENTH)["m"].infer == Estimate(PRIORS.infer_s, is_measured=False)
    measurements.at(CPU).add("m", "infer", [1.0])
    assert measurements.at(TENTH)["m"].infer == Estimate(1.0, is_measured=False)
    measurements.at(WHOLE).add("m", "infer", [0.1])
    assert measurements.at(TENTH)["m"].infer == Estimate(0.1, is_measured=False)
    measurements.at(HALF).add("m", "infer", [0.2])
    assert measurements.at(TENTH)["m"].infer == Estimate(0.2, is_measured=False)
    assert not measurements.at(TENTH)["m"].stages.is_measured
    measurements.at(TENTH).add("m", "infer", [0.7])
    assert measurements.at(TENTH)["m"].infer == Estimate(0.7, is_measured=True)


def test_a_kind_of_another_product_takes_the_median_of_all() -> None:
    measurements = Measurements()
    for kind, seconds in ((TENTH, 3.0), (HALF, 2.0), (WHOLE, 1.0)):
        measurements.at(kind).add("m", "load:disk", [seconds])
    assert measurements.at(CPU)["m"].load_from(Tier.DISK, None) == Estimate(2.0, is_measured=False)


def test_without_a_pod_in_question_the_only_kind_counts_else_what_lies_between() -> None:
    measurements = Measurements()
    assert measurements.over_kinds()["m"] is UNMEASURED
    measurements.at(CPU).add("m", "infer", [1.0])
    assert measurements.over_kinds()["m"].infer == Estimate(1.0, is_measured=True)
    measurements.at(WHOLE).add("m", "infer", [0.5])
    assert measurements.over_kinds()["m"].infer == Estimate(0.75, is_measured=False)
    measurements.at(WHOLE).add("m", "infer", [0.1, 0.1])
    assert measurements.over_kinds()["m"].infer == Estimate(0.55, is_measured=False)


def test_the_way_to_another_pod_is_that_of_other_models_until_it_is_measured() -> None:
    at_cpu = Measurements().at(CPU)
    assert at_cpu.proxying("m", "network") == Estimate(PRIORS.network_s, is_measured=False)
    at_cpu.add("other", "network", [0.1, 0.3])
    assert at_cpu.proxying("m", "network") == Estimate(0.2, is_measured=False)
    assert at_cpu.proxying("m", "assets") == Estimate(PRIORS.assets_s, is_measured=False)
    at_cpu.add("m", "network", [0.4])
    assert at_cpu.proxying("m", "network") == Estimate(0.4, is_measured=True)


def test_a_slower_pod_reads_its_kinds_table_times_its_slowness() -> None:
    table = Measurements().at(CPU)
    slowed = table.slowed(3.0)
    assert slowed["m"] is UNMEASURED
    for measure, seconds in (
        ("infer", 0.2), ("share", 0.1), ("preprocess", 0.01), ("postprocess", 0.02),
        ("infer:4", 0.5), ("network", 0.004), ("load:disk", 0.7), ("assets", 0.3),
    ):  # fmt: skip
        table.add("m", measure, [seconds])
    found = slowed["m"]
    stages = found.stages
    assert stages.is_measured
    assert (stages.infer_s, stages.share_s, stages.preprocess_s, stages.postprocess_s) == (
        pytest.approx((0.6, 0.3, 0.03, 0.06))
    )
    assert found.stages_of(4).infer_s == pytest.approx(1.5)
    assert found.infer.seconds == pytest.approx(0.6)
    for measure, seconds in (("network", 0.004), ("assets", 0.3)):
        for key in ("m", "unmeasured"):
            assert slowed.proxying(key, measure).seconds == seconds
    assert found.fastest_load_s == found.load_from(Tier.DISK, None).seconds == 0.7
    assert table["m"].infer.seconds == 0.2, "other pods read the table as it is"
    table.add("m", "infer", [0.4] * WINDOW)
    assert found.stages.infer_s == pytest.approx(1.2)
    assert slowed.slowed(1.0) is table
