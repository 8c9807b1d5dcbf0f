"""The inference routes: raw ASGI, so that a body's length is checked while it streams in.

A client that goes away takes its request with it, as far as it has not reached the device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson

from runtime.errors import InvalidRequest, RuntimePackageError, status_of
from runtime.metrics import REQUESTS
from runtime.peer import PeerRefused
from runtime.protocols.client import ClientGone, read_whole, too_large, while_connected
from runtime.protocols.request import read_head

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from runtime.protocols.bodies import Protocol
    from runtime.protocols.request import RequestHead
    from runtime.repository import Repository
    from runtime.service import Answer, PredictService

logger = logging.getLogger(__name__)

Headers = Sequence[tuple[str, str]]


class InferRoute:
    """One protocol's inference endpoint, as an ASGI application."""

    def __init__(
        self,
        service: PredictService,
        repository: Repository,
        protocol: Protocol,
        *,
        pod_name: str,
        most_body_bytes: int,
        allow_simulated_work: bool,
    ) -> None:
        self._service = service
        self._repository = repository
        self._protocol = protocol
        self._pod_name = pod_name
        self._most_body_bytes = most_body_bytes
        self._allow_simulated_work = allow_simulated_work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        stage = "infer" if "x-pilotlight-stage" in headers else "entry"
        common = [("x-pilotlight-pod", self._pod_name)]
        if request_id := headers.get("x-request-id"):
            common.append(("x-request-id", request_id))
        try:
            answer = await self._answer(scope["path_params"], headers, receive)
        except ClientGone:
            REQUESTS.labels(stage=stage, status="gone").inc()
            return
        except PeerRefused as refused:
            status, body = refused.status, refused.body
            answered = [*refused.headers.items(), *common]
        except RuntimePackageError as error:
            status, body, about = error_response(error)
            answered = [*about, *common]
        except Exception as error:
            logger.exception("request broke")
            status, body, about = _reply(HTTPStatus.INTERNAL_SERVER_ERROR, repr(error))
            answered = [*about, *common]
        else:
            status, body = HTTPStatus.OK, answer.body.content
            answered = [*answer.body.headers, *facts(answer), *common]
        REQUESTS.labels(stage=stage, status=str(int(status))).inc()
        await _send(send, status, body, answered)

    async def _answer(
        self, named: Mapping[str, str], headers: Mapping[str, str], receive: Receive
    ) -> Answer:
        head = await self._head(named, headers)
        self._service.check_open(head)
        _check_encoding(headers)
        body = await self._read(headers, receive)
        return await while_connected(receive, self._service.answer(head, self._protocol, body))

    async def _head(self, named: Mapping[str, str], headers: Mapping[str, str]) -> RequestHead:
        """The head of a request for what its path names."""
        model = named["model"]
        head = read_head(model, headers, allow_simulated_work=self._allow_simulated_work)
        if "version" not in named:
            return head
        spec = await self._repository.find(model, named["version"])
        return replace(head, generation=spec.generation)

    async def _read(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        """The whole body; raises BodyTooLarge before more than the limit is held."""
        declared = headers.get("content-length")
        if declared is not None and int(declared) > self._most_body_bytes:
            raise too_large(self._most_body_bytes, f"{declared} bytes")
        return await read_whole(receive, self._most_body_bytes)


def _check_encoding(headers: Mapping[str, str]) -> None:
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise InvalidRequest(
            f"header content-encoding must be absent or identity, was {encoding[:40]!r}:"
            " send the body as it is"
        )


def facts(answer: Answer) -> Headers:
    """How an answer came about, as headers."""
    timings = ", ".join(
        f"{stage.value};dur={seconds * 1000:.3f}" for stage, seconds in answer.stages.items()
    )
    return [
        ("x-pilotlight-predict-pod", answer.predict_pod),
        ("x-pilotlight-start", answer.start),
        ("server-timing", timings),
    ]


def error_response(error: RuntimePackageError) -> tuple[HTTPStatus, bytes, list[tuple[str, str]]]:
    """Status, body and headers of an error."""
    status, body, headers = _reply(status_of(error), str(error))
    if error.refusal is not None:
        headers.append(("x-pilotlight-not-executed", error.refusal))
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    return status, body, headers


def _reply(status: HTTPStatus, message: str) -> tuple[HTTPStatus, bytes, list[tuple[str, str]]]:
    return status, orjson.dumps({"error": message}), [("content-type", "application/json")]


async def _send(send: Send, status: int, body: bytes, headers: Headers) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": int(status), "headers": raw})
    await send({"type": "http.response.body", "body": body})
