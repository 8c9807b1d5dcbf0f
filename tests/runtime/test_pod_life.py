"""A pod's life: registration, drain, outages of the registry, sudden death, the forkserver."""

import errno
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from common.forkserver import Forkserver
from common.frames import frame, received
from registry.domain.pod import Profile, ProfilePoint, default_slots
from registry.domain.pod_state import PodState
from registry.redis.client import Registry
from runtime.forkserver import pod_program
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, metric, predict, unanswered


def pods_of(cluster: Cluster) -> dict[str, PodState]:
    async def look(registry: Registry) -> dict[str, PodState]:
        state = await registry.cluster()
        return state.pods

    return cluster.do(look)


def test_pod_registers_what_it_is(cluster: Cluster) -> None:
    pod = cluster.pod(slots=3, memory_bytes=12345, node="node-7", link_rate=1000)
    info = pods_of(cluster)["pod-a"].info
    assert (info.address, info.node, info.slots) == (pod.address, "node-7", 3)
    assert (info.memory_bytes, info.link_bytes_per_s, info.process_id) == (12345, 1000, pod.pid)
    assert (info.accelerator.uuid, info.share) == ("", 1.0)
    assert info.accelerator.product
    assert info.accelerator.cores >= 1


def test_slots_follow_the_profiles_of_the_pods_accelerator(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    cluster.pod("first")
    info = pods_of(cluster)["first"].info
    assert info.slots == default_slots()
    points = (ProfilePoint(1, 0.1), ProfilePoint(16, 0.2))
    own = Profile(spec.key, info.accelerator.product, points)
    other = Profile(spec.key, "another", (*points, ProfilePoint(64, 0.3)))

    async def store(registry: Registry) -> bool:
        return await registry.put_profile(own) and await registry.put_profile(other)

    assert cluster.do(store)
    cluster.pod("second")
    assert pods_of(cluster)["second"].info.slots == min(2 * 16, 8 * info.accelerator.cores)


def test_pod_may_be_reached_at_another_address_than_it_listens_on(cluster: Cluster) -> None:
    cluster.pod(advertise="10.0.0.7", advertise_port=8012)
    assert pods_of(cluster)["pod-a"].info.address == "10.0.0.7:8012"


def test_pod_reports_samples_without_the_warm_up(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    predict(pod.url, "m", "x")

    def measured() -> bool:
        async def look(registry: Registry) -> bool:
            state = await registry.cluster()
            found = state.measured(spec.key)
            return all(found.get(m) for m in ("infer", "preprocess", "load:remote"))

        return cluster.do(look)

    servers.wait_until(measured)
    assert pods_of(cluster)["pod-a"].loads_total == 1
    assert pods_of(cluster)["pod-a"].used_bytes["device"] > 0


@pytest.mark.slow
def test_draining_pod_finishes_what_it_has(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-bert")
    with cluster.pod_context("pod-a", slots=2, allow_simulated_work=True) as pod:
        predict(pod.url, "m", "x")
        with ThreadPoolExecutor(1) as clients:
            running = clients.submit(predict, pod.url, "m", "x", simulate="postprocess=5.0")
            servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 1)
            os.kill(pod.pid, signal.SIGTERM)
            servers.wait_until(lambda: get(f"{pod.url}/v2/health/ready").status_code == 503)
            refused = predict(pod.url, "m", "x")
            assert refused.status_code == 503
            assert refused.headers["x-pilotlight-not-executed"] == "draining"
            assert pods_of(cluster)["pod-a"].phase == "draining"
            assert running.result().status_code == 200
        event = forkserver.wait_event(exited="pod-a")
        assert event["status"] == 0
        forkserver.events.append(event)  # the context looks for it too
    assert pods_of(cluster) == {}


def test_killed_pod_is_gone_when_its_lease_is_over(
    cluster: Cluster, forkserver: servers.Forkserver
) -> None:
    with cluster.pod_context("pod-a", lease_ttl=0.6) as pod:
        os.kill(pod.pid, signal.SIGKILL)
        event = forkserver.wait_event(exited="pod-a")
        assert event["status"] == -signal.SIGKILL
        forkserver.events.append(event)

        async def sweep(registry: Registry) -> object:
            return await registry.transactions.submit("sync")

        def is_gone() -> bool:
            cluster.do(sweep)
            return pods_of(cluster) == {}

        servers.wait_until(is_gone)


def test_pod_serves_through_an_outage_and_registers_again(
    forkserver: servers.Forkserver, models: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(servers.redis_server(tmp_path / "redis"))
        cluster = Cluster(
            stack, forkserver=forkserver, redis_url=redis.url, folder=tmp_path / "pods"
        )
        spec = cluster.declare("m", models / "tiny-bert")
        cold = cluster.declare("cold", models / "tiny-bert")
        pod = cluster.pod(retire_grace=30)
        assert predict(pod.url, "m", "x").status_code == 200
        redis.stop()
        assert predict(pod.url, "m", "x").headers["x-pilotlight-start"] == "warm"
        assert predict(pod.url, "cold", "x").status_code == 200  # loads without a claim
        redis.start()
        servers.wait_until(lambda: set(pods_of(cluster)) == {"pod-a"})
        servers.wait_until(lambda: cluster.tiers(spec) == {"pod-a": "device"})
        assert cluster.tiers(cold) == {"pod-a": "device"}
        cluster.declare("m", models / "tiny-bert")
        servers.wait_until(
            lambda: predict(pod.url, "m", "x").headers.get("x-pilotlight-start") == "warm"
        )


def test_pod_starts_before_the_registry(forkserver: servers.Forkserver, tmp_path: Path) -> None:
    redis = servers.RedisServer(tmp_path / "redis")
    with ExitStack() as stack:
        cluster = Cluster(
            stack, forkserver=forkserver, redis_url=redis.url, folder=tmp_path / "pods"
        )
        stack.callback(redis.stop)
        with ThreadPoolExecutor(1) as starter:
            starting = starter.submit(cluster.pod)
            servers.wait_until((tmp_path / "pods" / "pod-a" / "pod.log").exists)
            redis.start()
            assert starting.result().is_ready()


@pytest.mark.slow
def test_heartbeat_is_not_starved_by_inference(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-t5")
    pod = cluster.pod(slots=8)
    predict(pod.url, "m", "x")
    epoch = pods_of(cluster)["pod-a"].epoch

    def beats() -> float:
        return metric(pod.url, "pilotlight_heartbeats_total", outcome="ok")

    enough, is_enough = beats() + 5, threading.Event()

    def ask_until_enough(_: int) -> set[int]:
        seen = set()
        while not is_enough.is_set():
            seen.add(predict(pod.url, "m", *["some words"] * 64).status_code)
        return seen

    with ThreadPoolExecutor(8) as clients:
        asking = clients.map(ask_until_enough, range(8))
        try:
            servers.wait_until(lambda: beats() >= enough, what="heartbeats beside inference")
        finally:
            is_enough.set()
        assert set.union(*asking) == {200}
    assert pods_of(cluster)["pod-a"].epoch == epoch
    assert metric(pod.url, "pilotlight_heartbeats_total", outcome="lease-lost") == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        pytest.param({"spawn": {"name": "x", "slots": -1}}, "at least 0", id="bad-setting"),
        pytest.param({"spawn": {"nme": "x"}}, "unknown setting 'nme'", id="unknown-setting"),
        pytest.param({"stop": "nobody"}, "no child nobody", id="unknown-pod"),
        pytest.param({"jump": 1}, "'spawn' or 'stop'", id="unknown-command"),
    ],
)
def test_forkserver_says_what_is_wrong_with_a_command(
    forkserver: servers.Forkserver, command: dict[str, object], message: str
) -> None:
    before = len(forkserver.events)
    forkserver.command(**command)
    servers.wait_until(lambda: any("error" in event for event in forkserver.events[before:]))
    (event,) = [event for event in forkserver.events if "error" in event]
    forkserver.events.remove(event)
    assert message in event["error"]


def test_forkserver_outlives_a_fork_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Forkserver(theirs, pod_program)._execute({"spawn": {"name": "x"}})
        assert os.strerror(errno.EAGAIN) in next(received(ours))[0]["error"]


@pytest.mark.slow
def test_a_pod_that_is_stopped_in_its_first_moment_stops_no_other(
    cluster: Cluster, forkserver: servers.Forkserver
) -> None:
    pod = cluster.pod()
    for number in range(8):
        name = f"brief-{number}"
        commands = ({"spawn": {"name": name}}, {"stop": name, "grace_s": 60})
        forkserver.connection.sendall(b"".join(frame(each) for each in commands))
        assert forkserver.wait_event(exited=name, timeout_s=30)["status"] == -signal.SIGTERM
        forkserver.wait_event(spawned=name)
    assert servers.is_alive(pod.pid)


@pytest.mark.slow
def test_no_pod_outlives_its_forkserver(redis: servers.RedisServer, tmp_path: Path) -> None:
    with (
        servers.forkserver() as parent,
        servers.pod(parent, name="orphan", redis_url=redis.url, folder=tmp_path) as pod,
    ):
        parent.process.kill()
        parent.process.wait()
        servers.wait_until(lambda: not servers.is_alive(pod.pid))


def test_client_that_leaves_frees_its_slot(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(allow_simulated_work=True)
    predict(pod.url, "m", "x")
    url = f"{pod.url}/v1/models/m:predict"
    with unanswered(url, {"instances": ["x"]}, x_pilotlight_simulate="postprocess=600"):
        servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 1)
    servers.wait_until(lambda: predict(pod.url, "m", "x").status_code == 200)
    servers.wait_until(
        lambda: metric(pod.url, "pilotlight_pod_requests_total", status="gone") == 1, what="counted"
    )
