"""A gateway's reservation at a pod: its claim, the end of its inference, its slot."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.domain.pod_state import Granted, LoadMode, Refusal, ReservationRequest
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import predict


def reserve(cluster: Cluster, *, entry: str, predict_pod: str, key: str) -> Granted:
    """Reserves like a gateway before it sends a request."""

    async def ask(registry: Registry) -> object:
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def settle(result: Granted | Refusal | RegistryUnavailable) -> None:
            outcome.set_result(result)

        terms = ReservationRequest(entry, predict_pod, key, LoadMode.LOAD)
        registry.reserve("r1", terms, settle)
        return await outcome

    granted = cluster.do(ask)
    assert isinstance(granted, Granted), granted
    return granted


def counts(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Slots and ongoing inferences of each pod."""

    async def look(registry: Registry) -> dict[str, tuple[int, int]]:
        state = await registry.cluster()
        return {pod.name: (pod.slots_used, pod.ongoing) for pod in state.pods.values()}

    return cluster.do(look)


@pytest.mark.slow
def test_reservation_ends_before_the_slot_is_free(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(allow_simulated_work=True)
    granted = reserve(cluster, entry="pod-a", predict_pod="pod-a", key=spec.key)
    assert counts(cluster) == {"pod-a": (1, 1)}
    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(
            predict,
            pod.url,
            "m",
            "x",
            reservation="r1",
            load_token=str(granted.load_token),
            generation=spec.generation,
            simulate="postprocess=5.0",
        )
        servers.wait_until(lambda: counts(cluster) == {"pod-a": (1, 0)})
        assert not running.done()
    assert running.result().status_code == 200
    assert running.result().headers["x-pilotlight-start"] == "remote"


def test_predict_pod_ends_its_own_reservation(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    entry, other = cluster.pod("entry"), cluster.pod("other")
    granted = reserve(cluster, entry="entry", predict_pod="other", key=spec.key)
    assert counts(cluster) == {"entry": (1, 0), "other": (0, 1)}
    response = predict(
        entry.url,
        "m",
        "x",
        reservation="r1",
        load_token=str(granted.load_token),
        predict=other.address,
    )
    assert response.status_code == 200, response.text
    servers.wait_until(lambda: counts(cluster) == {"entry": (1, 0), "other": (0, 0)})
    assert cluster.tiers(spec)["other"] == "device"
