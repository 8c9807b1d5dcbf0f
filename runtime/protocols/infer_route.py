"""The inference routes: raw ASGI, so that a body's length is checked while it streams in.

A client that goes away takes its request with it, as far as it has not reached the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.protocols.client import read_body_of, while_connected
from runtime.protocols.response import (
    HttpResponse,
    answer_or_fail,
    common_headers,
    headers_of,
    kserve_error,
    provenance_headers,
    stage_of,
)
from runtime.wire.request_head import read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from runtime.serving.predict_service import PredictService
    from runtime.serving.repository import Repository
    from runtime.wire.bodies import WireProtocol
    from runtime.wire.request_head import RequestHead


class InferRoute:
    """One protocol's inference endpoint, as an ASGI application."""

    def __init__(
        self,
        service: PredictService,
        repository: Repository,
        protocol: WireProtocol,
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
        headers = headers_of(scope)
        reply = HttpResponse(send, common_headers(self._pod_name, headers), kserve_error)
        work = self._answer(scope["path_params"], headers, receive, reply)
        await answer_or_fail(reply, stage_of(headers), work)

    async def _answer(
        self,
        named: Mapping[str, str],
        headers: Mapping[str, str],
        receive: Receive,
        reply: HttpResponse,
    ) -> None:
        head = await self._head(named, headers)
        self._service.check_open(head)
        body = await read_body_of(headers, receive, self._most_body_bytes)
        answer = await while_connected(receive, self._service.answer(head, self._protocol, body))
        await reply.whole(answer.body.content, [*answer.body.headers, *provenance_headers(answer)])

    async def _head(self, named: Mapping[str, str], headers: Mapping[str, str]) -> RequestHead:
        """The head of a request for what its path names."""
        model = named["model"]
        head = read_head(model, headers, allow_simulated_work=self._allow_simulated_work)
        if "version" not in named:
            return head
        spec = await self._repository.find(model, named["version"])
        return replace(head, generation=spec.generation)
