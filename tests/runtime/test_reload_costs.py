"""What bringing a model back is expected to cost."""

from __future__ import annotations

from registry.domain.model import Tier
from runtime.tiers.eviction import ReloadCosts

GB = 1_000_000_000


def test_a_models_own_last_load_counts_most() -> None:
    costs = ReloadCosts()
    costs.observe("a", Tier.DISK, GB, 4.0)
    costs.observe("a", Tier.DISK, GB, 3.0)
    assert costs.estimate_s("a", Tier.DISK, GB) == 3.0


def test_unmeasured_model_is_judged_by_size_and_the_tiers_rate() -> None:
    costs = ReloadCosts()
    before = costs.estimate_s("b", Tier.DISK, GB)
    assert costs.estimate_s("b", Tier.DISK, 2 * GB) > before
    costs.observe("a", Tier.DISK, GB, 10.0)
    assert costs.estimate_s("b", Tier.DISK, GB) > before
    assert costs.estimate_s("b", Tier.HOST, GB) < costs.estimate_s("b", Tier.REMOTE, GB)


def test_withdrawn_model_is_forgotten() -> None:
    costs = ReloadCosts()
    before = costs.estimate_s("a", Tier.HOST, GB)
    costs.observe("a", Tier.HOST, GB, GB / 10e9 + 0.02)
    costs.forget("a")
    assert abs(costs.estimate_s("a", Tier.HOST, GB) - before) < 1e-6
