"""The experiment scale: 10 to 1,000 pods, 10 to 10,000 models, and the capacity of one registry."""

from typing import Final

from registry.domain.model import RoutingPolicy
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.scaling.clusters import ClusterSizeResult, ClusterSizeTask, simulate_size
from research.experiments.scaling.registry_load import (
    RegistryLoadResult,
    RegistryLoadTask,
    measure_registry_load,
)

_SIZES: Final = ((10, 10), (10, 100), (100, 100), (100, 1_000), (1_000, 1_000), (1_000, 10_000))
"""Pods and models."""
_REQUESTS: Final = 10_000
"""Requests of the smaller sizes; a thousand pods get twice as many, 0.8 seconds of their load."""
_LARGE_PODS: Final = 1_000
_POLICIES: Final = (
    RoutingPolicy.COLOCATION,
    RoutingPolicy.COLOCATION_QUEUEING,
    RoutingPolicy.REMOTE_PROXY,
    RoutingPolicy.AUTO,
)
_CLIENTS: Final = (1, 64)
_POOLS: Final = ((100, 1_000, (1, 2, 4, 8)), (1_000, 10_000, (1, 4)))
"""Pods, models, and numbers of gateways."""


def run(settings: Settings) -> Result:
    """Simulated sizes; then the registry, where a platform can start a Redis."""
    seed = settings.seeds[0] if settings.seeds else 1
    tables = [_sizes_table(settings, seed)]
    notes = [
        f"seed {seed}; decision and request: CPU time of one core",
        "fairness: Jain's index over ten tenants of the share served within 1 s",
    ]
    if settings.live is None:
        notes.append("the registry was not measured: it needs a real Redis, so --live")
    else:
        tables.append(_registry_table(settings, seed))
        notes.append(
            "registry: rates are of this machine with gateways and Redis on the same cores; the "
            "limit is one second over Redis' CPU time per reservation and its release"
        )
    return Result(tuple(tables), tuple(notes))


def _sizes_table(settings: Settings, seed: int) -> Table:
    sizes = _SIZES[:1] if settings.is_quick else _SIZES
    tasks = [
        ClusterSizeTask(pods, models, _requests(settings, pods), policy, seed)
        for pods, models in sizes
        for policy in _POLICIES
    ]
    found = parallel_map(simulate_size, tasks, settings, what="sizes")
    return Table(
        "Simulated, at half of the devices' capacity for single requests",
        (
            "pods",
            "models",
            "requests",
            "policy",
            "cold-start rate",
            "p50 s",
            "p99 s",
            "in time",
            "fairness",
            "decision p50 us",
            "decision p95 us",
            "request us",
        ),
        tuple(_size_row(task, each) for task, each in zip(tasks, found, strict=True)),
    )


def _requests(settings: Settings, pods: int) -> int:
    if settings.is_quick:
        return 500
    return _REQUESTS if pods < _LARGE_PODS else 2 * _REQUESTS


def _size_row(task: ClusterSizeTask, found: ClusterSizeResult) -> tuple[Cell, ...]:
    return (
        task.pods,
        task.models,
        task.requests,
        task.policy.value,
        f"{found.cold_starts / task.requests:.2%}",
        found.p50_s,
        found.p99_s,
        f"{found.in_time:.2%}",
        f"{found.fairness:.4f}",
        found.decision_p50_us,
        found.decision_p95_us,
        found.request_us,
    )


def _registry_table(settings: Settings, seed: int) -> Table:
    assert settings.live is not None
    pools = ((10, 10, (1, 2)),) if settings.is_quick else _POOLS
    seconds = 0.5 if settings.is_quick else 2.0
    tasks = [
        RegistryLoadTask(gateways, clients, pods, models, seconds, seed)
        for pods, models, counts in pools
        for gateways in counts
        for clients in _CLIENTS
    ]
    rows = []
    for done, task in enumerate(tasks):
        settings.progress(done, len(tasks), f"{task.gateways} gateways, {task.clients} clients")
        with settings.live.redis() as url:
            rows.append(_registry_row(task, measure_registry_load(url, task)))
    return Table(
        "One Redis under the reservations of several gateways",
        (
            "pods",
            "models",
            "gateways",
            "clients each",
            "granted per s",
            "refused",
            "Redis us each",
            "gateway us each",
            "Redis is full at, per s",
        ),
        tuple(rows),
    )


def _registry_row(task: RegistryLoadTask, found: RegistryLoadResult) -> tuple[Cell, ...]:
    return (
        task.pods,
        task.models,
        task.gateways,
        task.clients,
        found.per_s,
        found.refused,
        found.redis_us,
        found.gateway_us,
        found.limit_per_s,
    )


EXPERIMENT: Final = Experiment(
    "scale",
    "10 to 1,000 pods and 10 to 10,000 models; the capacity of one registry",
    run,
    has_live_part=True,
)
