"""What pods measure of steps' outputs reaches the schedulers' estimates."""

from pathlib import Path

import pytest

from registry.domain.cluster import ClusterState
from registry.domain.estimates import TRANSFERS, TransferTier, size_class, transfer_measure
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.serving.test_step_tensors import (
    LARGE,
    doubling,
    infer,
    kept_output,
    reference_of,
)
from workflows.plan.costs import DeviceQueue
from workflows.plan.pods import LINKS, device_of, links, model_costs

__all__ = ["doubling"]
CLASS = size_class(LARGE.nbytes)


def measured_s(state: ClusterState, tier: TransferTier) -> float | None:
    found = state.measured(TRANSFERS).get(transfer_measure(tier, CLASS))
    return None if found is None else found.seconds


@pytest.mark.slow
def test_transfers_are_measured_by_tier(cluster: Cluster, doubling: Path, tmp_path: Path) -> None:
    spec = cluster.declare("double", doubling)
    node = str(tmp_path / "node")
    first, second = (cluster.pod(name, host_dir=node) for name in ("first", "second"))
    elsewhere = cluster.pod("elsewhere")
    once = kept_output(first, rows=LARGE)
    for pod in (second, elsewhere):
        reference_of(infer(pod, once))
    tiers = (TransferTier.SHARED_MEMORY, TransferTier.RAW_BYTES)

    def state() -> ClusterState:
        return cluster.do(lambda registry: registry.cluster())

    servers.wait_until(
        lambda: all(measured_s(state(), tier) is not None for tier in tiers),
        what="measurements published",
    )
    found = state()
    for tier, costs in zip(
        tiers, (links(found).shared_memory, links(found).raw_bytes), strict=True
    ):
        assert 0.0 < (measured_s(found, tier) or 0.0) < 30.0
        half_s = costs.seconds((1 << 20) / 2)  # the class reaches from 256 KiB to 1 MiB
        assert half_s == pytest.approx(measured_s(found, tier))
    assert links(found).raw_bytes != LINKS.raw_bytes
    assert model_costs(found, spec, None).output_bytes == LARGE.nbytes
    memory = {
        name: device_of(found, pod, DeviceQueue((), 0.0), [], 0.0).memory
        for name, pod in found.pods.items()
    }
    assert memory["first"] == memory["second"] != memory["elsewhere"]
