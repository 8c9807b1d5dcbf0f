"""Liveness, readiness and shutdown of real pods, also of one model."""

import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from common.inference_protocol.grpc_messages import messages
from registry.domain.model import ModelName, ModelRecord
from registry.redis.client import Registry
from runtime.device.worker import DeviceWorker
from runtime.pod.model_sync import single_model_spec
from tests import servers
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, metric, post, predict
from tests.runtime.test_hangs import endless
from tests.servers import wait_until


def pods_of(cluster: Cluster) -> list[str]:
    async def look(registry: Registry) -> list[str]:
        return sorted((await registry.cluster()).pods)

    return cluster.do(look)


def test_pod_is_live_but_not_ready_before_it_is_registered(
    forkserver: servers.Forkserver, tmp_path: Path
) -> None:
    redis = servers.RedisServer(tmp_path / "redis")
    port, grpc_port = servers.free_port(), servers.free_port()
    with ExitStack() as stack:
        stack.callback(redis.stop)
        cluster = Cluster(
            stack, forkserver=forkserver, redis_url=redis.url, folder=tmp_path / "pods"
        )
        with ThreadPoolExecutor(1) as starter:
            starting = starter.submit(cluster.pod, port=port, grpc_port=grpc_port)
            url = f"http://127.0.0.1:{port}"
            servers.wait_until(lambda: get(f"{url}/v2/health/live").json() == {"live": True})
            ready = get(f"{url}/v2/health/ready")
            assert (ready.status_code, ready.json()) == (503, {"ready": False})
            assert rpc.call(grpc_port, "ServerLive", messages.ServerLiveRequest()).live
            assert not rpc.call(grpc_port, "ServerReady", messages.ServerReadyRequest()).ready
            redis.start()
            assert starting.result().is_ready()
            assert rpc.call(grpc_port, "ServerReady", messages.ServerReadyRequest()).ready


def test_device_without_its_thread_is_not_alive() -> None:
    device = DeviceWorker(threads=1, max_queued=1)
    assert not device.is_alive
    device.start()
    assert device.is_alive
    device.close()
    assert not device.is_alive


def test_stopped_pod_unloads_and_deregisters(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-bert")
    with cluster.pod_context("pod-a") as pod:
        predict(pod.url, "m", "x")
        os.kill(pod.pid, signal.SIGTERM)
        event = forkserver.wait_event(exited="pod-a")
        assert event["status"] == 0
        forkserver.events.append(event)  # the context waits for it, too
        assert "reason=shutdown" in pod.log
        assert pods_of(cluster) == []
        assert pod.log.count(" registered ") == 1


def test_hanging_request_does_not_delay_shutdown(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-bert")
    with cluster.pod_context("pod-a", drain_timeout=0.5, allow_simulated_work=True) as pod:
        predict(pod.url, "m", "x")
        with ThreadPoolExecutor(1) as clients:
            running = clients.submit(predict, pod.url, "m", "x", simulate="postprocess=600")
            servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 1)
            os.kill(pod.pid, signal.SIGTERM)
            event = forkserver.wait_event(exited="pod-a")
            assert event["status"] == 0  # before the final timer
            forkserver.events.append(event)
            response = running.result()
            assert (response.status_code, "x-pilotlight-not-executed" in response.headers) == (
                503,
                False,
            )
            assert "pod-a ended" in response.json()["error"]
        assert pods_of(cluster) == []


def test_load_in_progress_does_not_delay_shutdown(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-t5")
    slow = {"link_rate": 1000, "drain_timeout": 0.3}
    with cluster.pod_context("pod-a", **slow) as pod, ThreadPoolExecutor(1) as clients:
        running = clients.submit(predict, pod.url, "m", "x")
        servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 1)
        os.kill(pod.pid, signal.SIGTERM)
        event = forkserver.wait_event(exited="pod-a")
        assert event["status"] == 0  # before the final timer, which ends it with another status
        forkserver.events.append(event)
        assert status_of(running) == 503
    assert pods_of(cluster) == []


def status_of(running: Future[httpx.Response]) -> int | None:
    """The status of a response; None if the connection closed without one."""
    try:
        return running.result().status_code
    except httpx.TransportError:
        return None


@pytest.mark.slow
def test_busy_device_does_not_delay_shutdown(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver, tmp_path: Path
) -> None:
    """A running inference cannot be cancelled: the process ends after its drain timeout."""
    cluster.declare("m", endless(models, tmp_path))
    with cluster.pod_context("pod-a", slots=8, drain_timeout=0.2) as pod:
        post(f"{pod.url}/v2/repository/models/default~m/load")
        with ThreadPoolExecutor(8) as clients:
            running = [clients.submit(predict, pod.url, "m", "x") for _ in range(8)]
            servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 8)
            os.kill(pod.pid, signal.SIGTERM)
            event = forkserver.wait_event(exited="pod-a")
            assert event["status"] in {0, os.EX_TEMPFAIL}  # by itself, or by the final timer
            forkserver.events.append(event)
            assert 503 in {status_of(each) for each in running} <= {503, None}
        assert pods_of(cluster) == []


def find(cluster: Cluster, name: str) -> ModelRecord | None:
    return cluster.do(lambda registry: registry.get_model(ModelName("default", name)))


def test_is_ready_once_its_model_is_loaded_and_keeps_it(cluster: Cluster, models: Path) -> None:
    folder = str(models / "tiny-bert")
    pod = cluster.pod(model_name="alone", model_dir=folder)
    assert get(f"{pod.url}/v1/models/alone").json() == {"name": "alone", "ready": True}
    assert predict(pod.url, "alone", "a cat").status_code == 200
    cluster.withdraw("alone")  # as if its registry had lost its data

    def is_there_again() -> bool:
        record = find(cluster, "alone")
        is_declared = record is not None and record.spec == single_model_spec("alone", folder)
        return is_declared and predict(pod.url, "alone", "a cat").status_code == 200

    wait_until(is_there_again, what="the model is there again")


def test_is_not_ready_before_its_model_can_be_loaded(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    place, port = tmp_path / "model", servers.free_port()
    url = f"http://127.0.0.1:{port}"
    with ThreadPoolExecutor(1) as starter:
        starting = starter.submit(
            cluster.pod, port=port, grpc_port=0, model_name="late", model_dir=str(place)
        )

        def has_failed() -> bool:
            record = find(cluster, "late")
            return record is not None and record.failure is not None

        wait_until(has_failed, what="the failed load is recorded")
        wait_until(
            lambda: get(f"{url}/v2/health/live").json() == {"live": True}, what="the pod is live"
        )
        assert get(f"{url}/v2/health/ready").status_code == 503
        servers.copy_model(models / "tiny-bert", place)
        assert starting.result().is_ready()
