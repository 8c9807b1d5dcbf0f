"""Cluster sizes in the simulator, and reservations on a real Redis."""

from pathlib import Path

import pytest

from registry.domain.model import RoutingPolicy
from research.experiments.harness.experiment import ExperimentError, Settings
from research.experiments.scaling import scale
from research.experiments.scaling.clusters import ClusterSizeTask, simulate_size
from research.experiments.scaling.registry_load import RegistryLoadTask, measure_registry_load
from tests.servers import redis_server


def test_a_size_has_all_figures() -> None:
    found = simulate_size(ClusterSizeTask(10, 20, 400, RoutingPolicy.AUTO, 1))
    assert found.cold_starts <= 400
    assert 0 < found.p50_s <= found.p99_s
    assert 0 < found.in_time <= 1
    assert 0 < found.fairness <= 1
    assert 0 < found.decision_p50_us <= found.decision_p95_us


def test_without_a_platform_the_registry_is_left_out() -> None:
    result = scale.run(Settings(is_quick=True))
    assert len(result.tables) == 1
    assert any("the registry was not measured" in note for note in result.notes)


def test_gateways_reserve_against_a_real_redis(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        found = measure_registry_load(
            server.url, RegistryLoadTask(2, 4, 5, 10, seconds=0.5, seed=1)
        )
    assert found.granted > 0
    assert found.redis_us > 0
    assert found.gateway_us > 0


def test_an_address_without_a_redis_is_one_error() -> None:
    with pytest.raises(ExperimentError, match=r"redis://127\.0\.0\.1:1/0"):
        measure_registry_load(
            "redis://127.0.0.1:1/0", RegistryLoadTask(1, 1, 1, 1, seconds=0.1, seed=1)
        )
