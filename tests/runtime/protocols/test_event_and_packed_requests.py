"""V1 requests that are CloudEvents, and compressed bodies, at a pod."""

import base64
import gzip
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import predict

MOST_BODY_BYTES = 200_000
PATH = "/v1/models/default~text:predict"
BODY = {"instances": ["a cat"]}
EVENT = {
    "specversion": "1.0",
    "id": "7",
    "source": "sensor",
    "type": "reading",
    "time": "2026-11-28T00:00:00Z",
}
HEADERS = {f"ce-{name}": value for name, value in EVENT.items()}
STRUCTURED = {"content-type": "application/cloudevents+json"}


@pytest.fixture(scope="module")
def pod(shared_cluster: Cluster, models: Path) -> servers.Pod:
    shared_cluster.declare("text", models / "tiny-bert")
    served = shared_cluster.pod("pod-with-0", slots=4, max_body_bytes=MOST_BODY_BYTES)
    assert predict(served.url, "text", "x").status_code == 200
    return served


def post(pod: servers.Pod, content: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(pod.url + PATH, content=content, headers=named, trust_env=False, timeout=60)


def expected(pod: servers.Pod) -> Any:
    plain = post(pod, orjson.dumps(BODY))
    assert plain.status_code == 200
    assert not [name for name in plain.headers if name.startswith("ce-")]
    return plain.json()


def check_attributes(found: dict[str, str]) -> None:
    assert found["specversion"] == "1.0"
    assert found["type"] == "io.kserve.inference.response"
    assert found["source"] == "io.kserve.inference.text"
    assert found["id"] not in ("", "7")
    assert datetime.fromisoformat(found["time"]).tzinfo is not None


def test_an_event_in_binary_mode_is_answered_in_kind(pod: servers.Pod) -> None:
    response = post(pod, orjson.dumps(BODY), **HEADERS)
    assert response.status_code == 200
    assert response.json() == expected(pod)
    assert response.headers["content-type"] == "application/json"
    check_attributes(
        {
            name.removeprefix("ce-"): value
            for name, value in response.headers.items()
            if name.startswith("ce-")
        }
    )


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"data": BODY}, id="data"),
        pytest.param(
            {"data_base64": base64.b64encode(orjson.dumps(BODY)).decode()}, id="data-base64"
        ),
    ],
)
def test_an_event_in_structured_mode_is_answered_in_kind(
    pod: servers.Pod, data: dict[str, Any]
) -> None:
    kind = STRUCTURED["content-type"]
    for content_type in (kind, f"{kind}; charset=utf-8"):
        response = post(pod, orjson.dumps({**EVENT, **data}), content_type=content_type)
        assert response.status_code == 200
        assert response.headers["content-type"] == kind
        event = response.json()
        assert event.pop("data") == expected(pod)
        check_attributes(event)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        pytest.param(EVENT, "'data' must be a request's object, was null", id="no-data"),
        pytest.param({**EVENT, "data": [1]}, "was an array", id="a-list"),
        pytest.param({**EVENT, "data": {**EVENT, "data": BODY}}, "was an object", id="nested"),
        pytest.param({**EVENT, "data_base64": "%"}, "must be base64", id="no-base64"),
        pytest.param({**EVENT, "data": {"a": 1}}, "array 'instances', held ['a']", id="other"),
    ],
)
def test_an_event_without_a_request_is_refused(
    pod: servers.Pod, event: dict[str, Any], message: str
) -> None:
    response = post(pod, orjson.dumps(event), **STRUCTURED)
    assert response.status_code == 400
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)],
)
def test_a_compressed_body_is_read(pod: servers.Pod, coding: str, pack: Any) -> None:
    response = post(pod, pack(orjson.dumps(BODY)), content_encoding=coding)
    assert response.status_code == 200
    assert response.json() == expected(pod)


def test_a_compressed_event_is_read(pod: servers.Pod) -> None:
    content = gzip.compress(orjson.dumps({**EVENT, "data": BODY}))
    response = post(pod, content, content_encoding="gzip", **STRUCTURED)
    assert response.json()["data"] == expected(pod)


def test_another_coding_is_415_and_names_those_that_are_read(pod: servers.Pod) -> None:
    response = post(pod, b"x", content_encoding="br")
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "identity, gzip, deflate"
    assert "content-encoding" in response.json()["error"]


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        pytest.param(gzip.compress(bytes(10**8)), 413, "has more, packed as gzip", id="zeros"),
        pytest.param(b"plain", 400, "the body is not gzip", id="not-packed"),
        pytest.param(gzip.compress(b"{}")[:-3], 400, "it ends early", id="cut"),
    ],
)
def test_a_body_that_does_not_unpack_is_refused(
    pod: servers.Pod, content: bytes, status: int, message: str
) -> None:
    response = post(pod, content, content_encoding="gzip")
    assert (response.status_code, message in response.json()["error"]) == (status, True)
