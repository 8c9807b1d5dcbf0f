"""Use of copies from what pods report."""

from __future__ import annotations

from autoscaler.planning.copy_uses import copy_uses
from autoscaler.planning.pool_view import CopyUse
from load.simulator.registry.memory_registry import MemoryRegistry
from registry.domain.model import Tier
from registry.domain.pod import CopyReport, PodInfo

KEY = "default/m@1"


def _registry(**tiers: Tier) -> MemoryRegistry:
    """Pods by name, with the model at a tier since 10 s."""
    registry = MemoryRegistry()
    for name, tier in tiers.items():
        epoch = registry.register_pod(PodInfo(name, f"{name}:1", "n"), 1.0)
        registry.set_tier(name, epoch, KEY, tier, 100, 10.0)
    return registry


def test_every_warm_copy_has_the_use_that_its_pod_reports() -> None:
    state = _registry(p=Tier.DEVICE, q=Tier.DEVICE, r=Tier.DISK).state
    reports = {
        "p": (20.0, {KEY: CopyReport(ongoing=2, served=5, idle_s=1.5)}),
        "q": (21.0, {KEY: CopyReport()}),
        "r": (22.0, {KEY: CopyReport(served=9, idle_s=0.0)}),
    }
    assert copy_uses(state, reports) == {
        KEY: {"p": CopyUse(2, 18.5, 5), "q": CopyUse()},
    }


def test_a_copy_loaded_after_the_report_is_unused() -> None:
    """The report is of the copy before it, or the pod has not heard of it."""
    state = _registry(p=Tier.DEVICE, q=Tier.DEVICE).state
    reports = {"p": (9.9, {KEY: CopyReport(served=7, idle_s=0.1)}), "q": (15.0, {})}
    assert copy_uses(state, reports) == {KEY: {"p": CopyUse(), "q": CopyUse()}}


def test_pods_of_an_older_version_report_nothing() -> None:
    assert copy_uses(_registry(p=Tier.DEVICE).state, {}) == {}
