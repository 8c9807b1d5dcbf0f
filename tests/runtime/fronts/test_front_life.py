"""Fronts and the device process: deaths, drains, deadlines, slots, generations, secret and TLS."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from registry.pod_secret import HEADER
from tests import servers
from tests.certificates import write_certificates
from tests.runtime.fronts.warm_fronts import inferred, warm
from tests.runtime.http import TIMEOUT_S, infer_texts, metric, predict, unanswered, wait_idle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.runtime.conftest import Cluster

pytestmark = pytest.mark.slow

FRONTS = 2
FRONT_SCORE = "500"
"""`oom_score_adj` of fronts, and of no other process of a pod."""

MESSAGE_BYTES = 300
"""Less than the message of one request."""


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def is_front(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == FRONT_SCORE
    return False


def front_pids(pod: servers.Pod) -> list[int]:
    return [pid for child in children(pod.pid) for pid in children(child) if is_front(pid)]


def wait_for_fronts(pod: servers.Pod, number: int) -> list[int]:
    """Until that many take connections: a pod is ready before."""
    servers.wait_until(
        lambda: metric(pod.url, "pilotlight_front_processes") == number, what="fronts"
    )
    found = front_pids(pod)
    assert len(found) == number
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def written_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing until the block ends; what is sent to it waits."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def pod(cluster: Cluster, models: Path) -> servers.Pod:
    cluster.declare("m", models / "tiny-bert")
    started = cluster.pod(front_processes=FRONTS, slots=2)
    warm(started, "m", FRONTS)
    return started


@pytest.fixture
def clients(pod: servers.Pod) -> Iterator[list[httpx.Client]]:
    """Clients with a connection each, of which every front has one."""
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(httpx.Client(trust_env=False, timeout=TIMEOUT_S))
            for _ in range(FRONTS)
        ]
        for client in opened:
            assert ask(client, pod).status_code == 200
        yield opened


def ask(client: httpx.Client, pod: servers.Pod, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{pod.url}/v1/models/default~m:predict"
    return client.post(url, json={"instances": ["x"]}, headers=named)


def test_a_killed_front_loses_its_own_requests_and_is_replaced(
    pod: servers.Pod, clients: list[httpx.Client]
) -> None:
    first, *_ = before = front_pids(pod)
    assert len(before) == FRONTS
    with ThreadPoolExecutor(FRONTS) as threads:
        with stopped(pod.pid):
            sent = {pid: written_bytes(pid) + MESSAGE_BYTES for pid in before}
            asked = [threads.submit(ask, client, pod) for client in clients]
            servers.wait_until(
                lambda: all(written_bytes(pid) > sent[pid] for pid in before),
                what="requests on their way to the device process",
            )
            os.kill(first, signal.SIGKILL)
        errors = [each.exception(TIMEOUT_S) for each in asked]
    (lost,) = [error for error in errors if error is not None]
    assert isinstance(lost, httpx.ReadError | httpx.RemoteProtocolError)
    (answered,) = [each.result() for each in asked if not each.exception()]
    assert answered.status_code == 200
    servers.wait_until(lambda: len(set(front_pids(pod)) - {first}) == FRONTS, what="a new front")
    warm(pod, "m", FRONTS)
    wait_idle(pod)
    assert metric(pod.url, "pilotlight_front_restarts_total") == 1
    assert metric(pod.url, "pilotlight_front_processes") == FRONTS
    assert "replaced" in pod.log


def test_a_killed_device_process_takes_its_fronts_along(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    with cluster.pod_context("pod-a", front_processes=FRONTS) as pod:
        fronts = wait_for_fronts(pod, FRONTS)
        assert infer_texts(pod.url, "m", "x").status_code == 200
        os.kill(pod.pid, signal.SIGKILL)
        servers.wait_until(lambda: all(map(has_ended, fronts)), what="the fronts' end")
    with pytest.raises(httpx.ConnectError):
        infer_texts(pod.url, "m", "x")


def test_a_pod_ends_when_no_front_can_be_started(cluster: Cluster) -> None:
    with cluster.pod_context("pod-a", front_processes=1) as pod:
        (front,) = wait_for_fronts(pod, 1)
        os.kill(parent_of(front), signal.SIGKILL)
        servers.wait_until(lambda: has_ended(pod.pid), what="the pod's end")
        assert "no front can be started" in pod.log
        assert has_ended(front)


def test_a_drain_completes_the_requests_of_fronts(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-bert")
    with cluster.pod_context("pod-a", front_processes=1) as pod:
        warm(pod, "m", 1)
        fronts = front_pids(pod)
        with (
            ThreadPoolExecutor(1) as threads,
            httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client,
        ):
            assert ask(client, pod).status_code == 200
            with stopped(*fronts):  # it answers after the device process has begun to drain
                asked = threads.submit(ask, client, pod)
                forkserver.command(stop="pod-a", grace_s=30)
                servers.wait_until(lambda: "draining" in pod.log, what="draining")
            response = asked.result(TIMEOUT_S)
        assert response.status_code == 503
        assert response.headers["x-pilotlight-not-executed"] == "draining"
        servers.wait_until(lambda: all(map(has_ended, (pod.pid, *fronts))), what="the end")
        assert "Traceback" not in pod.log
        ended = {"exited": "pod-a", "pid": pod.pid, "status": 0}
        servers.wait_until(lambda: ended in forkserver.events, what="the exit status")


def test_a_deadline_passes_at_the_device_process(
    pod: servers.Pod, clients: list[httpx.Client]
) -> None:
    with ThreadPoolExecutor(1) as threads:
        with stopped(pod.pid):
            begun_s = time.monotonic()
            asked = threads.submit(ask, clients[0], pod, x_pilotlight_deadline_ms="200")
            servers.wait_until(lambda: time.monotonic() > begun_s + 0.3, what="the deadline")
        response = asked.result(TIMEOUT_S)
    assert (response.status_code, response.headers["x-pilotlight-not-executed"]) == (
        504,
        "deadline",
    )
    wait_idle(pod)


def test_slots_are_those_of_the_whole_pod(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(front_processes=FRONTS, slots=1)
    warm(pod, "m", FRONTS)
    clients = [httpx.Client(trust_env=False, timeout=TIMEOUT_S) for _ in range(6)]
    with ThreadPoolExecutor(len(clients)) as threads, contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
            assert ask(client, pod).status_code == 200
        with stopped(pod.pid):
            asked = [threads.submit(ask, client, pod) for client in clients]
            time.sleep(0.5)
        found = sorted(each.result(TIMEOUT_S).status_code for each in asked)
    assert set(found) == {200, 429}
    wait_idle(pod)


def test_a_front_with_more_requests_than_slots_passes_them_on(
    cluster: Cluster, models: Path
) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(front_processes=1, slots=1)
    warm(pod, "m", 1)
    url = f"{pod.url}/v1/models/default~m:predict"
    with (
        socket.create_connection((pod.host, pod.port)) as slow,
        httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client,
    ):
        slow.sendall(f"POST {url} HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n{{".encode())
        servers.wait_until(lambda: is_passed(client, pod), what="a request that is passed on")
        body = b'"instances": ["x"]}'
        slow.sendall(body)
        assert slow.recv(100).startswith(b"HTTP/1.1 200")


def is_passed(client: httpx.Client, pod: servers.Pod) -> bool:
    """Whether the next request is passed on, and answered."""
    before = inferred(pod)
    assert ask(client, pod).status_code == 200
    return inferred(pod) == before


def test_a_client_that_leaves_ends_its_request(pod: servers.Pod) -> None:
    url = f"{pod.url}/v1/models/default~m:predict"
    for _ in range(4):
        with unanswered(url, {"instances": ["x"]}):
            pass
    wait_idle(pod)
    assert predict(pod.url, "m", "x").status_code == 200
    assert "Traceback" not in pod.log


def test_fronts_serve_the_generation_that_serves_now(
    pod: servers.Pod, cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    old = predict(pod.url, "m", "x").json()
    cluster.declare(
        "m", servers.copy_model(models / "tiny-bert", tmp_path / "new"), task="text-embedding"
    )
    servers.wait_until(lambda: predict(pod.url, "m", "x").json() != old, what="the new generation")
    assert isinstance(predict(pod.url, "m", "x").json()["predictions"][0], list)
    warm(pod, "m", FRONTS)
    cluster.withdraw("m")
    servers.wait_until(lambda: predict(pod.url, "m", "x").status_code == 404, what="withdrawal")


def test_fronts_hold_secret_and_tls(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    file = tmp_path / "secret"
    file.write_text("secret-of-pods-1")
    folder = write_certificates(tmp_path / "tls")
    pod = cluster.pod(front_processes=1, pod_secret_file=str(file), tls_dir=str(folder))
    url = f"{pod.url}/v1/models/default~m:predict"
    secret = {HEADER: "secret-of-pods-1"}
    with httpx.Client(verify=False, trust_env=False, timeout=TIMEOUT_S) as client:

        def status(**headers: str) -> int:
            return client.post(url, json={"instances": ["x"]}, headers=headers).status_code

        assert status() == 401
        before = inferred(pod)
        servers.wait_until(lambda: status(**secret) == 200 and inferred(pod) > 0, what="learnt")
        before = inferred(pod)
        assert status(**{HEADER: "another-secret-of-pods"}) == 401
        assert client.get(f"{pod.url}/v2/models").status_code == 401
        assert client.get(f"{pod.url}/v2/health/ready").status_code == 200
        assert inferred(pod) == before
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://{pod.address}/", trust_env=False)
    assert "Traceback" not in pod.log
