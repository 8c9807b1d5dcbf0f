"""Short forms of the requests that the runtime's tests send: plain HTTP, no certificates."""

import base64
import contextlib
import io
import socket
from collections.abc import Iterator
from typing import Any

import httpx
from PIL import Image

from tests import servers

TIMEOUT_S = 180.0


def post(url: str, document: object = None, **headers: str) -> httpx.Response:
    """POST a JSON document; header names are given with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        url, json=document, headers=named, trust_env=False, verify=False, timeout=TIMEOUT_S
    )


def post_bytes(url: str, content: bytes, **headers: str) -> httpx.Response:
    """POST a body as it is."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        url, content=content, headers=named, trust_env=False, verify=False, timeout=TIMEOUT_S
    )


def get(url: str) -> httpx.Response:
    """GET."""
    return httpx.get(url, trust_env=False, verify=False, timeout=TIMEOUT_S)


@contextlib.contextmanager
def unanswered(url: str, document: object, **headers: str) -> Iterator[None]:
    """A POST by a client that reads no answer, and leaves when the block ends."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = httpx.Request("POST", url, json=document, headers=named)
    lines = [f"POST {request.url.raw_path.decode()} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode()
    with socket.create_connection((request.url.host, request.url.port or 80)) as connection:
        connection.sendall(head + request.content)
        yield


def predict(pod_url: str, model: str, *instances: Any, **headers: str) -> httpx.Response:
    """A V1 request; headers beginning with `x_pilotlight_` may leave that out."""
    url = f"{pod_url}/v1/models/default~{model}:predict"
    return post(url, {"instances": list(instances)}, **_ours(headers))


def infer_texts(pod_url: str, model: str, *texts: str, **headers: str) -> httpx.Response:
    """A V2 request in JSON."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
    url = f"{pod_url}/v2/models/default~{model}/infer"
    return post(url, {"inputs": [tensor]}, **_ours(headers))


def _ours(headers: dict[str, str]) -> dict[str, str]:
    return {f"x_pilotlight_{name}": value for name, value in headers.items()}


def picture(color: str = "red") -> str:
    """A small PNG in base64."""
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10), color).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def metric(pod_url: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that carry `labels`."""
    total = 0.0
    for line in get(f"{pod_url}/metrics").text.splitlines():
        head, _, value = line.rpartition(" ")
        has_labels = all(f'{label}="{wanted}"' in head for label, wanted in labels.items())
        if head.partition("{")[0] == name and has_labels:
            total += float(value)
    return total


def wait_idle(pod: servers.Pod) -> None:
    """Return when a pod answers and generates nothing."""
    wanted = {"pilotlight_pod_slots_used": 0.0, "pilotlight_generations": 0.0}
    servers.wait_until(
        lambda: {name: metric(pod.url, name) for name in wanted} == wanted, what="idle"
    )
