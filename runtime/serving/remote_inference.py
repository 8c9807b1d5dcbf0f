"""Remote proxying: inference at another pod, with pooled connections."""

from __future__ import annotations

import re
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import httpx
import orjson

from registry import knative_errors
from registry.knative_errors import QueueProxyFailure
from runtime.errors import (
    DeadlinePassed,
    InvalidRequest,
    RemoteInferenceFailed,
    RemotePodUnreachable,
)
from runtime.wire.v2 import LENGTH_HEADER, decode_outputs, encode_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from runtime.wire.request_head import RequestHead
    from runtime.wire.tensors import Tensor

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 600.0
MOST_CONNECTIONS = 256
POD_HEADER = "x-pilotlight-pod"
TIMING = re.compile(r"([a-z-]+);dur=([0-9.]+)")


class RemoteRefused(Exception):
    """The predict pod answered with an error, whose status, message and headers are passed on."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(_message_of(body))
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """What the network gave at the predict pod."""

    outputs: tuple[Tensor, ...]
    pod: str
    start: str
    load_s: float
    infer_s: float
    network_s: float
    """The call's time less what the predict pod spent on the request."""


class RemoteInference:
    """Calls other pods."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(
                max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_CONNECTIONS
            ),
            trust_env=False,
            verify=False,  # pods speak plain HTTP: reading certificates would slow each pod's start
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def infer(self, head: RequestHead, inputs: tuple[Tensor, ...]) -> RemoteAnswer:
        """Run a request's inference stage at its predict pod; raises PeerFailed, PeerRefused."""
        started_s = time.monotonic()
        body = encode_request(inputs)
        headers = {**dict(body.headers), **_forwarded(head, started_s)}
        url = f"http://{head.predict_address}/v2/models/{head.name.path_segment}/infer"
        with _told(head):
            answer = await self._client.post(url, content=body.content, headers=headers)
        elapsed_s = time.monotonic() - started_s
        _require_pods(answer, head)
        if answer.status_code != httpx.codes.OK:
            raise RemoteRefused(answer.status_code, answer.content, _passed_on(answer.headers))
        timings = read_timings(answer.headers.get("server-timing", ""))
        load_s, infer_s = timings.get("load", 0.0), timings.get("infer", 0.0)
        try:
            outputs = decode_outputs(answer.content, answer.headers.get(LENGTH_HEADER))
        except InvalidRequest as error:
            raise RemoteInferenceFailed(f"predict pod gave no tensors: {error}") from error
        return RemoteAnswer(
            outputs=outputs,
            pod=answer.headers.get(POD_HEADER, ""),
            start=answer.headers.get("x-pilotlight-start", "warm"),
            load_s=load_s,
            infer_s=infer_s,
            network_s=max(0.0, elapsed_s - load_s - infer_s),
        )

    @asynccontextmanager
    async def forward(
        self, head: RequestHead, path: str, content: bytes
    ) -> AsyncIterator[httpx.Response]:
        """A whole request at its predict pod, its answer unread; raises PeerFailed."""
        headers = {"content-type": "application/json", **_forwarded(head, time.monotonic())}
        url = f"http://{head.predict_address}{path}"
        with _told(head):
            async with self._client.stream("POST", url, content=content, headers=headers) as answer:
                if _is_queue_proxys(answer):
                    await answer.aread()
                    _require_pods(answer, head)
                yield answer


@contextmanager
def _told(head: RequestHead) -> Iterator[None]:
    """What goes wrong on the way to the predict pod, as PeerUnreachable or PeerFailed."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise RemotePodUnreachable(
            f"predict pod {head.predict_address} cannot be reached: {error!r}"
        ) from error
    except httpx.HTTPError as error:
        raise RemoteInferenceFailed(
            f"predict pod {head.predict_address} broke off: {error!r}"
        ) from error


def _is_queue_proxys(answer: httpx.Response) -> bool:
    return (
        answer.status_code in knative_errors.FAILURE_STATUSES and POD_HEADER not in answer.headers
    )


def _require_pods(answer: httpx.Response, head: RequestHead) -> None:
    """Raise for what a queue-proxy said in place of the predict pod."""
    if not _is_queue_proxys(answer):
        return
    said = f"queue-proxy of predict pod {head.predict_address}: {answer.text.strip()}"
    match knative_errors.classify_failure(answer.status_code, answer.content):
        case QueueProxyFailure.NOT_REACHED:
            raise RemotePodUnreachable(said)
        case QueueProxyFailure.FULL:
            refusal = {"x-pilotlight-not-executed": "slots"}
            raise RemoteRefused(answer.status_code, orjson.dumps({"error": said}), refusal)
        case QueueProxyFailure.BROKEN:
            raise RemoteInferenceFailed(said)
        case other:
            assert_never(other)


def read_timings(text: str) -> dict[str, float]:
    """Seconds per stage in a `server-timing` header."""
    return {stage: float(value) / 1000 for stage, value in TIMING.findall(text)}


def _forwarded(head: RequestHead, now_s: float) -> dict[str, str]:
    headers = {
        "x-pilotlight-stage": "infer",
        "x-request-id": head.id,
        "x-pilotlight-model-name": head.answer_name,
    }
    if head.generation is not None:
        headers["x-pilotlight-generation"] = head.generation
    if head.reservation is not None:
        headers["x-pilotlight-reservation"] = head.reservation
    if head.load_token is not None:
        headers["x-pilotlight-load-token"] = str(head.load_token)
    if head.deadline_s is not None:
        remaining_s = head.deadline_s - now_s
        if remaining_s <= 0:
            raise DeadlinePassed("the deadline passed before the predict pod was called")
        headers["x-pilotlight-deadline-ms"] = f"{remaining_s * 1000:.1f}"
    return headers


def _passed_on(headers: httpx.Headers) -> dict[str, str]:
    kept = ("retry-after", "x-pilotlight-not-executed")
    return {name: headers[name] for name in kept if name in headers}


def _message_of(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"])
    except (ValueError, TypeError, KeyError):
        return body.decode("utf-8", "replace")
