"""Pods beside a server of Triton's protocol as written (`tests.runtime.v2_server`)."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from common.inference_protocol.bodies import (
    LENGTH_HEADER,
    MAX_JSON_COMMAS,
    decode_outputs,
    encode_request,
)
from common.inference_protocol.grpc_messages import messages
from common.inference_protocol.tensors import numeric_tensor
from registry.domain.model import ModelName, ModelPolicy, ModelSpec
from tests import servers
from tests.http_server import Handler, http_server
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, post, post_bytes, predict
from tests.runtime.model_server.as_written import (
    ROW,
    TOTAL,
    WrittenServer,
    make_model,
    request,
    written_server,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WrittenServer]:
    with written_server(tmp_path / "repository") as started:
        yield started


def _infer(pod: servers.Pod, name: str, *rows: list[float], **headers: str) -> object:
    found = post(f"{pod.url}/v2/models/default~{name}/infer", request(*(rows or (ROW,))), **headers)
    assert found.status_code == 200, found.text
    return found.json()["outputs"][0]["data"]


def _repository(server: WrittenServer) -> set[str]:
    return {path.name for path in server.repository.iterdir() if not path.name.startswith(".")}


def test_a_model_is_loaded_asked_and_unloaded(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    spec = cluster.declare("adder", make_model(tmp_path / "adder"))
    url = f"{pod.url}/v2/models/default~adder"
    answer = post(f"{url}/infer", request(ROW, [0, 0, 0, 1], id="one"))
    assert answer.headers["x-pilotlight-start"] == "remote"
    document = answer.json()
    assert document["model_name"] == "adder"
    assert (document["id"], document["outputs"][0]["data"]) == ("one", [TOTAL, 1.0])
    metadata = get(url).json()
    assert metadata["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}]
    assert metadata["platform"] == "as-written"
    assert cluster.tiers(spec) == {"pod-a": "device"}
    name = f"default~adder~{spec.generation}"
    assert _repository(server) == {name}
    assert (server.repository / name / "1" / "behaviour").stat().st_nlink == 2  # a hard link
    post(f"{pod.url}/v2/repository/models/default~adder/unload")
    servers.wait_until(lambda: not _repository(server), what="files removed")
    assert f"/v2/repository/models/{name}/unload" in server.requests()
    assert post(f"{url}/infer", request(ROW)).headers["x-pilotlight-start"] == "disk"


@pytest.mark.parametrize("is_binary", [True, False])
def test_all_protocols_agree(cluster: Cluster, tmp_path: Path, is_binary: bool) -> None:
    with written_server(tmp_path / "repository", is_binary=is_binary) as server:
        port = servers.free_port()
        pod = cluster.pod(grpc_port=port, **server.settings)
        cluster.declare("adder", make_model(tmp_path / "adder"))
        assert _infer(pod, "adder") == [TOTAL]
        message = messages.ModelInferRequest(model_name="default~adder")
        entry = message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
        entry.contents.fp32_contents.extend(ROW)
        answer = rpc.call(port, "ModelInfer", message)
        assert list(answer.outputs[0].contents.fp32_contents) == [TOTAL]
        assert predict(pod.url, "adder", {"INPUT0": ROW}).json() == {"predictions": [TOTAL]}
        assert predict(pod.url, "adder", ROW).json() == {"predictions": [TOTAL]}
        body = encode_request([numeric_tensor("INPUT0", np.asarray([ROW], np.float32))])
        headers = {key.replace("-", "_"): value for key, value in body.headers}
        url = f"{pod.url}/v2/models/default~adder/infer"
        found = post_bytes(url, body.content, **headers)
        (output,) = decode_outputs(found.content, found.headers[LENGTH_HEADER])
        assert (output.name, output.data.tolist()) == ("OUTPUT0", [TOTAL])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param({"inputs": []}, "unexpected inference inputs", id="no-tensor"),
        pytest.param(
            {"inputs": [{**request(ROW)["inputs"][0], "name": "X"}]}, "['X']", id="wrong-name"
        ),
        pytest.param(request([1.0, 2.0]), "unexpected shape", id="wrong-shape"),
        pytest.param(
            {"inputs": [{**request(ROW)["inputs"][0], "datatype": "INT8"}]}, "INT8", id="wrong-type"
        ),
    ],
)
def test_what_the_server_refuses_is_a_bad_request_in_its_words(
    cluster: Cluster, server: WrittenServer, tmp_path: Path, body: object, words: str
) -> None:
    pod = cluster.pod(**server.settings)
    cluster.declare("adder", make_model(tmp_path / "adder"))
    found = post(f"{pod.url}/v2/models/default~adder/infer", body)
    assert (found.status_code, words in found.json()["error"]) == (400, True), found.text
    assert _infer(pod, "adder") == [TOTAL]  # and the model stays


def test_a_body_that_is_no_json_is_a_bad_request(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    cluster.declare("adder", make_model(tmp_path / "adder"))
    assert post_bytes(f"{pod.url}/v2/models/default~adder/infer", b"{no").status_code == 400
    assert predict(pod.url, "adder", "text").status_code == 400


def test_json_of_too_many_values_does_not_reach_the_server(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    cluster.declare("adder", make_model(tmp_path / "adder"))
    body = b'{"inputs": [' + b"1," * (MAX_JSON_COMMAS + 1) + b"1]}"
    found = post_bytes(f"{pod.url}/v2/models/default~adder/infer", body)
    assert found.status_code == 413
    assert not [path for path in server.requests() if path.endswith("/infer")]


def test_a_response_of_many_values_comes_whole(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    cluster.declare("adder", make_model(tmp_path / "adder"))
    rows = [[float(number), 0.0, 0.0, 1.0] for number in range(20_000)]
    found = post(f"{pod.url}/v2/models/default~adder/infer", request(*rows)).json()
    assert found["model_name"] == "adder"
    assert found["outputs"][0]["data"] == [row[0] + 1 for row in rows]


def test_models_of_one_name_in_two_namespaces_are_kept_apart(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    cluster.declare("same", make_model(tmp_path / "one", config='name: "mine"\nbackend: "x"\n'))
    other = ModelSpec(ModelName("team-b", "same"), make_model(tmp_path / "two", "crash").as_uri())
    cluster.do(lambda registry: registry.put_models([other]))
    assert _infer(pod, "same") == [TOTAL]
    found = post(f"{pod.url}/v2/models/team-b~same/infer", request(ROW))
    assert (found.status_code, "the backend failed" in found.text) == (500, True)
    assert len(_repository(server)) == 2


def test_a_model_that_the_server_refuses_says_why_and_leaves_others_alone(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    cluster.declare("bad", make_model(tmp_path / "bad", "refuse"))
    cluster.declare("good", make_model(tmp_path / "good"))
    found = post(f"{pod.url}/v2/models/default~bad/infer", request(ROW))
    assert (found.status_code, "unsupported model" in found.text) == (422, True)
    failure = cluster.record("bad").failure
    assert failure is not None
    assert "unsupported model" in failure.message
    assert _infer(pod, "good") == [TOTAL]
    servers.wait_until(lambda: len(_repository(server)) == 1, what="refused files removed")


def test_a_load_that_hangs_fails_after_its_time(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(engine_load_timeout=4.0, **server.settings)
    cluster.declare("slow", make_model(tmp_path / "slow", "load-hang"))
    cluster.declare("good", make_model(tmp_path / "good"))
    found = post(f"{pod.url}/v2/models/default~slow/infer", request(ROW))
    assert (found.status_code, "within 4 s" in found.text) == (503, True), found.text
    assert _infer(pod, "good") == [TOTAL]


def test_a_load_that_hangs_holds_up_no_other(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    slow = cluster.declare("slow", make_model(tmp_path / "slow", "load-hang"))
    cluster.declare("good", make_model(tmp_path / "good"))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(post, f"{pod.url}/v2/models/default~slow/infer", request(ROW))
        path = f"/v2/repository/models/default~slow~{slow.generation}/load"
        servers.wait_until(lambda: path in server.requests(), what="the load has begun")
        assert _infer(pod, "good") == [TOTAL]
        assert not waiting.done()
        server.kill()
        assert waiting.result().status_code == 503


def test_a_server_that_is_deaf_in_an_inference_is_not_away(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    """MLServer without workers answers nothing while a model infers."""
    pod = cluster.pod(**server.settings)
    cluster.declare("deaf", make_model(tmp_path / "deaf", "deaf"))
    assert _infer(pod, "deaf") == [TOTAL]
    assert "model server away" not in pod.log
    assert pod.is_ready()


def test_an_inference_that_hangs_is_answered_after_its_time(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    policy = ModelPolicy(max_infer_s=0.5)
    cluster.declare("stuck", make_model(tmp_path / "stuck", "hang"), policy=policy)
    cluster.declare("good", make_model(tmp_path / "good"))
    found = post(f"{pod.url}/v2/models/default~stuck/infer", request(ROW))
    assert (found.status_code, "within 0.5 s" in found.text) == (504, True)
    assert _infer(pod, "good") == [TOTAL]


def test_a_server_that_dies_in_a_batch_takes_no_other_pod_along(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    """Requests at it end with an error; its pod comes back with its models when it does."""
    pod = cluster.pod(**server.settings)
    with written_server(tmp_path / "other") as second:
        other = cluster.pod("pod-b", **second.settings)
        good = cluster.declare("good", make_model(tmp_path / "good"))
        cluster.declare("deadly", make_model(tmp_path / "deadly", "die"))
        assert _infer(pod, "good") == _infer(other, "good") == [TOTAL]
        waiting = cluster.declare("waits", make_model(tmp_path / "waits", "hang"))
        post(f"{pod.url}/v2/repository/models/default~waits/load")
        with ThreadPoolExecutor(2) as threads:
            url = f"{pod.url}/v2/models/default~waits/infer"
            beside = threads.submit(post, url, request(ROW))
            name = f"/v2/models/default~waits~{waiting.generation}/infer"
            servers.wait_until(lambda: name in server.requests(), what="a request in the batch")
            found = post(f"{pod.url}/v2/models/default~deadly/infer", request(ROW))
            for each in (found, beside.result()):
                assert each.status_code == 503
                assert "ended the connection" in each.text
                assert "x-pilotlight-not-executed" not in each.headers
        servers.wait_until(lambda: not pod.is_ready(), what="the pod is not ready")
        refused = post(f"{pod.url}/v2/models/default~good/infer", request(ROW))
        assert (refused.status_code, refused.headers["x-pilotlight-not-executed"]) == (
            503,
            "draining",
        )
        assert _infer(other, "good") == [TOTAL]
        assert cluster.record("good").failure is None
        servers.wait_until(lambda: "pod-a" not in cluster.tiers(good), what="models lost")
        server.start()
        servers.wait_until(
            lambda: cluster.tiers(good).get("pod-a") == "device", what="loaded again"
        )
        assert pod.is_ready()
        assert _infer(pod, "good") == [TOTAL]


def test_a_server_that_hangs_makes_its_pod_not_ready_until_it_is_back(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)
    good = cluster.declare("good", make_model(tmp_path / "good"))
    assert _infer(pod, "good") == [TOTAL]
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    servers.wait_until(lambda: not pod.is_ready(), what="the pod is not ready")
    server.process.send_signal(signal.SIGCONT)
    servers.wait_until(lambda: cluster.tiers(good).get("pod-a") == "device", what="loaded again")
    assert _infer(pod, "good") == [TOTAL]


def test_a_model_that_the_server_has_forgotten_is_loaded_again(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    """As after a restart that was too short to be seen."""
    pod = cluster.pod(**server.settings)
    cluster.declare("good", make_model(tmp_path / "good"))
    assert _infer(pod, "good") == [TOTAL]
    server.post("/forget")
    found = post(f"{pod.url}/v2/models/default~good/infer", request(ROW))
    assert (found.status_code, found.headers["x-pilotlight-not-executed"]) == (503, "draining")
    assert _infer(pod, "good") == [TOTAL]


def test_a_pod_waits_for_a_server_that_is_absent_at_its_start(
    cluster: Cluster, tmp_path: Path
) -> None:
    server = WrittenServer(tmp_path / "repository")
    port = servers.free_port()
    seen: list[int] = []

    def start_late() -> None:
        servers.wait_until(lambda: get(f"http://127.0.0.1:{port}/v2/health/live").is_success)
        seen.append(get(f"http://127.0.0.1:{port}/v2/health/ready").status_code)
        server.start()

    starter = threading.Thread(target=start_late)
    starter.start()
    try:
        pod = cluster.pod(port=port, **server.settings)
        starter.join()
        assert seen == [503]
        cluster.declare("good", make_model(tmp_path / "good"))
        assert _infer(pod, "good") == [TOTAL]
    finally:
        server.kill()


def test_a_url_of_something_else_keeps_the_pod_unready_and_is_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    asked: list[str] = []

    class NothingHere(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(404)

    with http_server(NothingHere) as address:
        url = f"http://{address}"
        settings = {"engine_url": url, "engine_repository": str(tmp_path / "repository")}
        with cluster.pod_context("pod-a", until=lambda _: len(asked) > 5, **settings) as pod:
            assert not _is_ready(pod)
            assert pod.log.count("no model server yet") == 1
            assert f"the model server at {url} is not live" in pod.log


def test_two_pods_cannot_share_a_repository(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    pod = cluster.pod(**server.settings)

    def is_refused(other: servers.Pod) -> bool:
        return "is used by pod pod-a" in other.log

    with cluster.pod_context("pod-b", until=is_refused, **server.settings) as other:
        assert not _is_ready(other)
    assert pod.is_ready()


def _is_ready(pod: servers.Pod) -> bool:
    """False also where it has ended, or does not listen yet."""
    try:
        return pod.is_ready()
    except httpx.TransportError:
        return False


def test_memory_is_that_of_the_servers_metrics(
    cluster: Cluster, server: WrittenServer, tmp_path: Path
) -> None:
    """The server says 3 MiB a model; the pod's budget of 8 MB holds two."""
    pod = cluster.pod(memory_bytes=8_000_000, engine_metrics=server.metrics_url, **server.settings)
    for name in ("a", "b", "c"):
        cluster.declare(name, make_model(tmp_path / name))
        assert _infer(pod, name) == [TOTAL]
    servers.wait_until(lambda: len(_repository(server)) == 2, what="one model evicted")
    assert _infer(pod, "a") == [TOTAL]


def test_a_command_is_started_restarted_and_ended_by_the_pod(
    cluster: Cluster, tmp_path: Path
) -> None:
    command = (
        f"{sys.executable} -m tests.runtime.v2_server --repository {{repository}} --port {{port}}"
    )
    context = cluster.pod_context(
        "pod-a", engine_command=f"/usr/bin/env PYTHONPATH={servers.REPOSITORY} {command}"
    )
    with context as pod:
        good = cluster.declare("good", make_model(tmp_path / "good"))
        assert _infer(pod, "good") == [TOTAL]
        (pid,) = _children(pod)
        os.kill(pid, signal.SIGKILL)
        servers.wait_until(
            lambda: pid not in _children(pod) and len(_children(pod)) == 1, what="restarted"
        )
        servers.wait_until(
            lambda: pod.is_ready() and cluster.tiers(good).get("pod-a") == "device",
            what="loaded again",
        )
        assert _infer(pod, "good") == [TOTAL]
        (second,) = _children(pod)
    servers.wait_until(lambda: not servers.is_alive(second), what="the server ended")


def _children(pod: servers.Pod) -> set[int]:
    """The server processes of a pod."""
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                line = (path / "cmdline").read_bytes()
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pod.pid and b"v2_server" in line:
                found.add(int(path.name))
    return found
