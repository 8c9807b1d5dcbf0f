"""The view of a pool from the registry's state."""

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.desired_pods import PodUse, pod_uses
from autoscaler.observe import copy_uses, read_pool
from autoscaler.policy import NEVER_S, CopyUse, Limits, PoolView
from load.simulator.memory_registry import MemoryRegistry
from registry.domain.demand import QueueStats
from registry.domain.estimates import PRIORS
from registry.domain.model import STOPPED, LoadFailure, ModelSpec, Tier
from registry.domain.pod import Accelerator, CopyReport, PodInfo, PodPhase, PodReport, Samples
from tests.autoscaler.views import model, pod, pool, spec

M, N = spec("m"), spec("n")
KEY = "default/m@1"


def _registry() -> MemoryRegistry:
    registry = MemoryRegistry()
    registry.put_models([N, M], 0.0)
    for name in ("p", "q"):
        info = PodInfo(name, f"{name}:1", "a", slots=2, memory_bytes=100, link_bytes_per_s=1e6)
        registry.register_pod(info, 0.0)
    return registry


def _view(registry: MemoryRegistry, **seen: Any) -> PoolView:
    return read_pool(registry.state, 5.0, limits=Limits(min_pods=1), **seen)


def test_models_and_pods_are_sorted_by_name() -> None:
    view = _view(_registry())
    assert [each.key for each in view.models] == [M.key, N.key]
    assert list(view.pods) == ["p", "q"]
    assert view.limits == Limits(min_pods=1)


def test_a_stopped_model_is_not_planned() -> None:
    registry = _registry()
    registry.put_models([replace(M, needs=STOPPED)], 1.0)
    assert [each.key for each in _view(registry).models] == [N.key]


def test_view_of_a_pod() -> None:
    registry = _registry()
    used: dict[str, int] = {Tier.DEVICE: 30, Tier.DISK: 7}
    registry.heartbeat("p", 1, PodReport(used), 1.0)
    registry.set_phase("q", registry.state.pods["q"].epoch, PodPhase.DRAINING, 1.0)
    view = _view(registry)
    assert (view.pods["p"].budget_bytes, view.pods["p"].free_bytes) == (100, 70)
    assert [each.name for each in view.accepting] == ["p"]


def test_memory_of_a_shared_accelerator_is_planned_once() -> None:
    registry = MemoryRegistry()
    gpu = Accelerator("GPU-1", "NVIDIA H200", memory_bytes=100)
    for name in ("p", "q"):
        info = PodInfo(name, f"{name}:1", "a", memory_bytes=100, accelerator=gpu, share=0.5)
        registry.register_pod(info, 0.0)
    registry.heartbeat("p", 1, PodReport({Tier.DEVICE: 60}), 1.0)
    pods = _view(registry).pods
    assert (pods["p"].free_bytes, pods["q"].free_bytes) == (11, 28)
    assert pods["p"].budget_bytes == 71


def test_view_of_a_model() -> None:
    registry = _registry()
    registry.set_tier("p", 1, M.key, Tier.DISK, 40, 1.0)
    samples = (Samples(M.key, "load:disk", (0.5,)), Samples(M.key, "share", (0.2,)))
    registry.heartbeat("p", 1, PodReport(samples=samples), 1.0)
    found, other = _view(registry, size_bytes={N.key: 9}).models
    assert (found.holders["p"].tier, found.size_bytes, found.infer_s) == (Tier.DISK, 40, 0.2)
    assert (found.load_from_s(Tier.DISK), found.load_from_s(Tier.DEVICE)) == (0.5, 0.0)
    assert (other.size_bytes, other.last_arrival_s) == (9, NEVER_S)
    assert other.load_from_s(Tier.REMOTE) == PRIORS.load_bytes / 1e6


def test_an_evicted_model_has_the_size_that_it_had_on_a_device() -> None:
    registry = _registry()
    registry.set_tier("p", 1, M.key, Tier.DEVICE, 90, 1.0)
    registry.set_tier("p", 1, M.key, Tier.DISK, 4, 2.0)
    assert _view(registry).models[0].size_bytes == 90


def test_view_includes_observations_of_gateways() -> None:
    found = _view(
        _registry(),
        arrived={M.name: 3},
        last_arrival_s={M.name: 4.0},
        waiting={M.name: QueueStats(requests=2)},
    ).models[0]
    assert (found.arrived, found.last_arrival_s, found.waiting.requests) == (3, 4.0, 2)


@pytest.mark.parametrize(("now_s", "may"), [(9.0, False), (10.0, True)])
def test_a_failed_load_may_be_retried_after_its_delay(now_s: float, may: bool) -> None:
    failure = LoadFailure(M.key, "ModelLoadFailed", "no such file", 1, retry_at_s=10.0)
    assert model(failure=failure).may_load(now_s) is may


def _warm(of: ModelSpec, last_s: float) -> PoolView:
    warm = model(of.name.name, at={"p": Tier.DEVICE}, last_arrival_s=last_s)
    return pool([pod("p"), pod("q", inferring=1)], [warm], now_s=100.0)


def test_use_of_pods() -> None:
    assert pod_uses(_warm(M, 90.0)) == {"p": PodUse.IN_USE_IDLE, "q": PodUse.IN_USE_BUSY}
    assert pod_uses(_warm(M, 10.0))["p"] is PodUse.WARM_IDLE
    assert pod_uses(pool([pod("p")], []))["p"] is PodUse.COLD


def _holding(**tiers: Tier) -> MemoryRegistry:
    """Pods by name, with the model at a tier since 10 s."""
    registry = MemoryRegistry()
    for name, tier in tiers.items():
        epoch = registry.register_pod(PodInfo(name, f"{name}:1", "n"), 1.0)
        registry.set_tier(name, epoch, KEY, tier, 100, 10.0)
    return registry


def test_every_warm_copy_has_the_use_that_its_pod_reports() -> None:
    state = _holding(p=Tier.DEVICE, q=Tier.DEVICE, r=Tier.DISK).state
    reports = {
        "p": (20.0, {KEY: CopyReport(ongoing=2, served=5, idle_s=1.5)}),
        "q": (21.0, {KEY: CopyReport()}),
        "r": (22.0, {KEY: CopyReport(served=9, idle_s=0.0)}),
    }
    assert copy_uses(state, reports) == {KEY: {"p": CopyUse(2, 18.5, 5), "q": CopyUse()}}


def test_a_copy_loaded_after_the_report_is_unused() -> None:
    """The report is of the copy before it, or the pod has not heard of it."""
    state = _holding(p=Tier.DEVICE, q=Tier.DEVICE).state
    reports = {"p": (9.9, {KEY: CopyReport(served=7, idle_s=0.1)}), "q": (15.0, {})}
    assert copy_uses(state, reports) == {KEY: {"p": CopyUse(), "q": CopyUse()}}


def test_pods_of_an_older_version_report_nothing() -> None:
    assert copy_uses(_holding(p=Tier.DEVICE).state, {}) == {}
