"""Requests of the inference stage to other pods, over connections that are kept."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import assert_never

import orjson

from common.http_client import HttpClient, Response, StreamedResponse
from common.http_connection import HttpError, NotConnected
from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import LENGTH_HEADER, decode_outputs, encode_request
from common.inference_protocol.tensors import Tensor
from common.pod_responses import (
    FAILURE_STATUSES,
    QueueProxyFailure,
    classify_failure,
    parse_server_timing,
)
from common.pod_secret import PodSecret
from common.tls import PartTls
from runtime.errors import DeadlinePassed, RemoteInferenceFailed, RemotePodUnreachable
from runtime.inference_request import BODY_BYTES_HEADER, RequestHead

INFERENCE_STALL_S = 600.0
POD_HEADER = "x-pilotlight-pod"
FORWARDED_ERROR_HEADERS = ("retry-after", "x-pilotlight-error", "x-pilotlight-not-executed")


class RemoteRefused(Exception):
    """The predict pod responded with an error: its status, message and headers are forwarded."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(_error_message(body))
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class RemoteResult:
    outputs: tuple[Tensor, ...]
    pod: str
    start: str
    load_s: float
    infer_s: float
    network_s: float
    """The call's time less the load and the inference at the predict pod."""


class RemoteInference:
    def __init__(self, secret: PodSecret, tls: PartTls) -> None:
        self._secret = secret
        self._client = HttpClient(tls=tls, stall_s=INFERENCE_STALL_S, resends=False)

    def close(self) -> None:
        self._client.close()

    async def infer(self, head: RequestHead, inputs: tuple[Tensor, ...]) -> RemoteResult:
        """Run the inference stage at the predict pod.

        Raises RemoteInferenceFailed, RemotePodUnreachable, RemoteRefused, DeadlinePassed.
        """
        started_s = time.monotonic()
        body = encode_request(inputs)
        headers = {
            **dict(body.headers),
            **_request_headers(head, started_s),
            **self._secret.headers,
        }
        path = f"/v2/models/{head.model.path_segment}/infer"
        with _transport_errors(head):
            response = await self._client.request(
                "POST", head.predict_address or "", path, headers, body.content
            )
        elapsed_s = time.monotonic() - started_s
        _check_origin(response, head)
        if response.status != HTTPStatus.OK:
            kept = {
                name: response.headers[name]
                for name in FORWARDED_ERROR_HEADERS
                if name in response.headers
            }
            raise RemoteRefused(response.status, response.body, kept)
        timings_ms = parse_server_timing(response.headers.get("server-timing", ""))
        load_s, infer_s = (timings_ms.get(stage, 0.0) / 1000 for stage in ("load", "infer"))
        try:
            outputs = decode_outputs(response.body, response.headers.get(LENGTH_HEADER))
        except InvalidRequest as error:
            raise RemoteInferenceFailed(
                f"the predict pod's response holds no valid tensors: {error}"
            ) from error
        return RemoteResult(
            outputs=outputs,
            pod=response.headers.get(POD_HEADER, ""),
            start=response.headers.get("x-pilotlight-start", "warm"),
            load_s=load_s,
            infer_s=infer_s,
            network_s=max(0.0, elapsed_s - load_s - infer_s),
        )

    @asynccontextmanager
    async def forward(
        self, head: RequestHead, path: str, content: bytes
    ) -> AsyncIterator[StreamedResponse]:
        """Forward a whole request to its predict pod; the response's body is not read yet.

        Raises RemoteInferenceFailed, RemotePodUnreachable, RemoteRefused, DeadlinePassed.
        """
        headers = {
            "content-type": "application/json",
            **_request_headers(head, time.monotonic()),
            **self._secret.headers,
        }
        address = head.predict_address or ""
        with _transport_errors(head):
            async with self._client.stream("POST", address, path, headers, content) as response:
                if _is_from_queue_proxy(response):
                    body = await response.read()
                    _check_origin(Response(response.status, response.headers, body), head)
                yield response


@contextmanager
def _transport_errors(head: RequestHead) -> Iterator[None]:
    """Raise the client's errors as RemotePodUnreachable or RemoteInferenceFailed."""
    try:
        yield
    except NotConnected as error:
        raise RemotePodUnreachable(f"predict pod {error}") from error
    except HttpError as error:
        raise RemoteInferenceFailed(
            f"predict pod {head.predict_address} gave no response: {error}"
        ) from error


def _is_from_queue_proxy(response: Response | StreamedResponse) -> bool:
    return response.status in FAILURE_STATUSES and POD_HEADER not in response.headers


def _check_origin(response: Response, head: RequestHead) -> None:
    """Raise if a queue-proxy responded in place of the predict pod."""
    if not _is_from_queue_proxy(response):
        return
    detail = f"queue-proxy of predict pod {head.predict_address}: {response.text.strip()}"
    match classify_failure(response.status, response.body):
        case QueueProxyFailure.NOT_REACHED:
            raise RemotePodUnreachable(detail)
        case QueueProxyFailure.FULL:
            refusal = {"x-pilotlight-not-executed": "slots"}
            raise RemoteRefused(response.status, orjson.dumps({"error": detail}), refusal)
        case QueueProxyFailure.BROKEN:
            raise RemoteInferenceFailed(detail)
        case other:
            assert_never(other)


def _request_headers(head: RequestHead, now_s: float) -> dict[str, str]:
    headers = {
        "x-pilotlight-stage": "infer",
        "x-request-id": head.id,
        "x-pilotlight-model-name": head.response_model_name,
    }
    if head.generation is not None:
        headers["x-pilotlight-generation"] = head.generation
    if head.reservation is not None:
        headers["x-pilotlight-reservation"] = head.reservation
    if head.load_token is not None:
        headers["x-pilotlight-load-token"] = str(head.load_token)
    if head.body_bytes is not None:
        headers[BODY_BYTES_HEADER] = str(head.body_bytes)
    if head.deadline_s is not None:
        remaining_s = head.deadline_s - now_s
        if remaining_s <= 0:
            raise DeadlinePassed("the deadline passed before the predict pod was called")
        headers["x-pilotlight-deadline-ms"] = f"{remaining_s * 1000:.1f}"
    return headers


def _error_message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"])
    except (ValueError, TypeError, KeyError):
        return body.decode("utf-8", "replace")
