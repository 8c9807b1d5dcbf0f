"""The routes that a front serves itself: inferences of models that it has learnt.

A front decodes, preprocesses and encodes; admission, the model and its inference are the device
process's. Everything else is passed on: cold models, other pods' inference stages, workflow steps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from starlette.routing import Route

from registry.domain.pod import Stage
from runtime.fronts.device_link import StaleModel
from runtime.fronts.request_forms import FORMS, FrontRequest, RequestForm
from runtime.protocols.client import receive_body, while_connected
from runtime.protocols.response import (
    HttpResponse,
    common_headers,
    headers_of,
    provenance_headers,
    respond,
)
from runtime.serving.predict_request import PredictResponse
from runtime.tasks.text import TextInputs
from runtime.threads import in_thread
from runtime.wire.request_head import parse_request_head

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from runtime.fronts.device_link import DeviceLink
    from runtime.fronts.learnt_models import LearntModel, LearntModels
    from runtime.settings import RuntimeSettings
    from runtime.tasks.task import Processor

Result = TypeVar("Result")

MAX_BODY_BYTES: Final = 4 * 1024**2
"""Longer bodies are passed on, as streams: the pod refuses what it has no slot for unread."""
INLINE_BYTES: Final = 1024
"""Longest body whose texts are tokenised at once: in a front only its own requests wait for it."""
NOT_STARTED: Final = "0"
"""Status of a request that was passed on, which the device process counts."""
_PASSED_HEADERS: Final = frozenset(
    {
        "x-pilotlight-stage", "x-pilotlight-run", "x-pilotlight-step-queue",
        "x-pilotlight-following-ms", "x-pilotlight-simulate", "content-encoding",
        "transfer-encoding",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FrontContext:
    settings: RuntimeSettings
    link: DeviceLink
    models: LearntModels
    threads: Executor
    passing: ASGIApp


def front_routes(context: FrontContext) -> list[Route]:
    return [
        Route(path, FrontRoute(context, form), methods=["POST"]) for path, form in FORMS.items()
    ]


@dataclass(frozen=True, slots=True)
class FrontRoute:
    """One protocol's inference endpoint, as an ASGI application."""

    context: FrontContext
    form: RequestForm

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context, headers = self.context, headers_of(scope)
        learnt = self._learnt(scope["path_params"]["model"], headers)
        if learnt is None:
            await context.passing(scope, receive, send)
            return
        name = context.settings.name
        response = HttpResponse(send, common_headers(name, headers), self.form.error)
        with context.link.place():
            work = self._serve(learnt, scope, receive, send, response)
            await respond(response, "entry", work, self._count)

    def _learnt(self, model: str, headers: Mapping[str, str]) -> LearntModel | None:
        """The model; None if the request is to be passed on."""
        length = headers.get("content-length", "")
        if self.context.link.is_full:
            return None
        if not (length.isdecimal() and int(length) <= self._max_bytes):
            return None
        if headers.get("x-pilotlight-predict") not in {None, "", self.context.link.address}:
            return None
        if not _PASSED_HEADERS.isdisjoint(headers):
            return None
        learnt = self.context.models.get(model, headers.get("x-pilotlight-generation") or None)
        return learnt if learnt is not None and self.form.takes(learnt.processor) else None

    @property
    def _max_bytes(self) -> int:
        settings = self.context.settings
        longest = settings.max_openai_bytes if self.form.is_for_embeddings else MAX_BODY_BYTES
        return min(longest, settings.max_body_bytes, MAX_BODY_BYTES)

    def _count(self, stage: str, status: str) -> None:
        if status != NOT_STARTED:
            self.context.link.count(stage, status)

    async def _serve(
        self,
        learnt: LearntModel,
        scope: Scope,
        receive: Receive,
        send: Send,
        response: HttpResponse,
    ) -> None:
        model, headers = scope["path_params"]["model"], headers_of(scope)
        head = parse_request_head(model, headers)
        body = await receive_body(headers, receive, self._max_bytes)
        request = FrontRequest(head, headers, body)
        try:
            result = await while_connected(receive, self._infer(learnt, request))
        except StaleModel:
            self.context.models.forget(model, headers.get("x-pilotlight-generation") or None)
            await self.context.passing(scope, _replay(body, receive), send)
            return
        await response.send(
            result.body.content, [*result.body.headers, *provenance_headers(result)]
        )

    async def _infer(self, learnt: LearntModel, request: FrontRequest) -> PredictResponse:
        link, processor = self.context.link, learnt.processor
        is_quick = len(request.body) <= _quick_bytes(processor)
        prepared = await self._call(is_quick, lambda: self.form.prepare(request, processor))
        inference = await link.infer(
            request.head, learnt.key, prepared.inputs, prepared.preprocess_s
        )
        started_s, seconds = time.monotonic(), None
        try:
            content = await self._call(is_quick, lambda: prepared.encode(inference.outputs))
            seconds = time.monotonic() - started_s
        finally:
            link.end(inference, seconds)
        return PredictResponse(
            content,
            self.context.settings.name,
            inference.start,
            {**inference.stages, Stage.POSTPROCESS: seconds},
            inference.batch,
        )

    async def _call(self, is_quick: bool, work: Callable[[], Result]) -> Result:
        return work() if is_quick else await in_thread(self.context.threads, work)


def _quick_bytes(processor: Processor) -> int:
    """Longest body that takes less time than a call in a thread."""
    return INLINE_BYTES if isinstance(processor, TextInputs) else 0


def _replay(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was received already, then what follows it."""
    unread = [body]

    async def replay() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return replay
