"""Requests to a pod without the shared secret, and the rotation of the secret under load."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest

from common.inference_protocol.grpc_messages import messages
from common.pod_secret import HEADER
from tests import servers
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import TIMEOUT_S

OLD, NEW = "old-secret-of-pods", "new-secret-of-pods"
MODEL = "/v2/models/default~m"
TEXT = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
CLOSED = [
    ("POST", "/v1/models/default~m:predict", {"instances": ["x"]}),
    ("POST", f"{MODEL}/infer", TEXT),
    ("POST", "/openai/v1/embeddings", {"model": "default/m", "input": "x"}),
    ("POST", "/v2/repository/index", {}),
    ("GET", "/v2/repository/index", None),
    ("POST", "/v2/repository/models/default~m/load", {}),
    ("POST", "/v2/repository/models/default~m/unload", {}),
    ("POST", f"{MODEL}/profile", {}),
    ("GET", "/v1/models", None),
    ("GET", MODEL, None),
    ("GET", "/openapi.json", None),
    ("POST", "/metrics", {}),
    ("GET", "/v2/health/live/", None),
]
OPEN = ["/", "/v2/health/live", "/v2/health/ready", "/metrics"]


def send(url: str, method: str, document: object, **headers: str) -> httpx.Response:
    return httpx.request(
        method,
        url,
        json=document,
        headers=headers,
        trust_env=False,
        verify=False,
        timeout=TIMEOUT_S,
    )


def test_only_probes_and_metrics_are_served_without_the_secret(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    cluster.declare("m", models / "tiny-bert")
    file = tmp_path / "secret"
    file.write_text(OLD)
    grpc_port = servers.free_port()
    pod = cluster.pod(pod_secret_file=str(file), grpc_port=grpc_port)
    wrong = {HEADER: NEW, "x-pilotlight-stage": "infer"}
    for method, path, document in CLOSED:
        for headers in ({}, wrong, {HEADER: ""}):
            refused = send(pod.url + path, method, document, **headers)
            assert refused.status_code == 401, (method, path, refused.text)
            assert refused.headers["x-pilotlight-not-executed"] == "secret"
            assert OLD not in refused.text
    for path in OPEN:
        assert send(pod.url + path, "GET", None).status_code == 200
    for method in ("ServerLive", "ServerReady"):
        assert rpc.call(grpc_port, method, getattr(messages, f"{method}Request")())
    for method, message in (
        ("ModelInfer", rpc.infer_texts("default~m", "x")),
        ("RepositoryModelLoad", messages.RepositoryModelLoadRequest(model_name="default~m")),
        ("RepositoryModelUnload", messages.RepositoryModelUnloadRequest(model_name="default~m")),
        ("ServerMetadata", messages.ServerMetadataRequest()),
    ):
        error = rpc.refused(grpc_port, method, message, **wrong)
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert send(pod.url + CLOSED[0][1], "POST", CLOSED[0][2], **{HEADER: OLD}).status_code == 200
    assert rpc.call(
        grpc_port, "ModelInfer", rpc.infer_texts("default~m", "x"), x_pilotlight_secret=OLD
    )
    assert OLD not in pod.log
    assert NEW not in pod.log


@pytest.mark.slow
def test_a_rotation_under_load_loses_no_request(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    """Each process reads its own file, as kubelets update mounted Secrets at different times."""
    cluster.declare("m", models / "tiny-bert")
    files = {name: tmp_path / f"{name}-secret" for name in ("entry", "other", "gateway")}
    for file in files.values():
        file.write_text(OLD)
    entry = cluster.pod("entry", pod_secret_file=str(files["entry"]))
    other = cluster.pod("other", pod_secret_file=str(files["other"]))
    with servers.gateway(
        tmp_path / "gateway",
        redis_url=cluster.redis_url,
        pool=cluster.pool,
        pod_secret_file=files["gateway"],
    ) as gateway:
        logs = {
            "entry": lambda: entry.log,
            "other": lambda: other.log,
            "gateway": lambda: gateway.log,
        }
        is_over, url = threading.Event(), f"{gateway.url}/v1/models/m:predict"

        def load(policy: str) -> list[int]:
            statuses = []
            while not is_over.is_set():
                response = send(
                    url, "POST", {"instances": ["x"]}, **{"x-pilotlight-policy": policy}
                )
                statuses.append(response.status_code)
            return statuses

        with ThreadPoolExecutor() as clients:
            loads = [clients.submit(load, name) for name in ("random", "remote-proxy")]
            try:
                for reads, (secrets, order) in enumerate(
                    [
                        ((OLD, NEW), ("entry", "gateway", "other")),
                        ((NEW,), ("gateway", "other", "entry")),
                    ],
                    start=1,
                ):
                    for name in order:
                        files[name].write_text("\n".join(secrets))
                        servers.wait_until(
                            lambda name=name, reads=reads: (  # type: ignore[misc]
                                logs[name]().count("pod secret read again") == reads
                            ),
                            what=f"{name} has read its secret",
                        )
            finally:
                is_over.set()
            statuses = [status for each in loads for status in each.result()]
        assert len(statuses) >= 6
        assert set(statuses) == {200}
        for pod in (entry, other):
            path = f"{pod.url}/v2/repository/index"
            assert send(path, "POST", {}, **{HEADER: OLD}).status_code == 401
            assert send(path, "POST", {}, **{HEADER: NEW}).status_code == 200


def test_an_unusable_file_ends_a_pod_at_once(tmp_path: Path) -> None:
    from common.settings_table import settings_from_fields
    from runtime.settings import RuntimeSettings

    file = tmp_path / "secret"
    for content, problem in ((None, "must be a readable file"), ("short", "16 to 256")):
        if content is not None:
            file.write_text(content)
        with pytest.raises(ValueError, match=problem):
            settings_from_fields(RuntimeSettings, {"name": "p", "pod_secret_file": str(file)})
