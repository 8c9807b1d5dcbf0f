"""OpenAI's routes of models that an engine of its own runs: bodies go through as they are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from common.http_client import Response
from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import parse_object
from registry.domain.estimates import generation_bytes
from registry.domain.pod import Stage
from registry.domain.prompt_prefixes import max_new_tokens
from runtime.engines.server_process import message_of
from runtime.errors import ServerLost, ServerUnavailable
from runtime.inference_request import RequestHead
from runtime.loading.external_model import EngineServed
from runtime.openai.endpoint import Through, parse_head
from runtime.protocols.asgi_app import Headers, HttpResponse, server_timing
from runtime.serving.generation_service import GenerationService, HeldModel
from runtime.tasks.engine_task import EngineTask
from runtime.threads import SMALL_BODY_BYTES, in_thread

if TYPE_CHECKING:
    from common.http_client import StreamedResponse

EVENT_STREAM: Final = "text/event-stream"
ATTEMPTS: Final = 2
"""Of a request whose engine ends before the response begins: the second starts a new engine."""


@dataclass(frozen=True, slots=True)
class EngineRoutes:
    generations: GenerationService

    async def find(self, request: Through) -> EngineCall | None:
        """The call of a body whose model an engine runs; None: another one. Raises PodError."""
        service = self.generations.service
        if len(request.content) <= SMALL_BODY_BYTES:
            document = parse_object(request.content)
        else:
            document = await in_thread(service.threads, parse_object, request.content)
        name = document.get("model")
        if not isinstance(name, str) or not name:
            return None
        head = parse_head(request.path_model, name, request.headers)
        service.in_flight.check_admission(head)
        spec = await service.catalog.find(head.model, head.generation)
        processor = await service.processors.get(spec)
        if not isinstance(processor, EngineTask):
            return None
        size_bytes = generation_bytes(len(request.content), max_new_tokens(document))
        return EngineCall(head, document, size_bytes)

    async def serve(self, path: str, call: EngineCall, response: HttpResponse) -> None:
        """Respond as the engine does; a client that leaves ends the request in the engine."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with (
                    self.generations.hold(call.head) as held,
                    self.generations.measured(held.spec, call.size_bytes),
                ):
                    answer = await _exchange(path, call, held, response)
                break
            except (ServerUnavailable, ServerLost):
                if response.status or attempt == ATTEMPTS:
                    raise
        # The end is sent after the slot is free for a next request.
        await (response.finish() if answer is None else response.send(*answer))


@dataclass(frozen=True, slots=True)
class EngineCall:
    head: RequestHead
    document: dict[str, Any]
    size_bytes: int
    """By which its time is measured."""

    def body(self, model: EngineServed) -> bytes:
        """As it came, with a name that the engine knows."""
        names = model.loaded.names
        name = self.document["model"]
        return orjson.dumps({**self.document, "model": name if name in names else names[0]})


async def _exchange(
    path: str, call: EngineCall, held: HeldModel, response: HttpResponse
) -> tuple[bytes, Headers, int] | None:
    """Body, headers and status; None: a stream was passed on, but for its end."""
    model = held.acquired.model
    if not isinstance(model, EngineServed):
        raise TypeError(f"{model.spec.key} is not a model of an engine")
    begun_s, refused = time.monotonic(), model.loaded.process.adapter.refused
    async with model.stream(f"/v1/{path}", call.body(model), call.head.id) as remote:
        headers = _headers(remote, held, time.monotonic() - begun_s)
        if not remote.headers.get("content-type", "").startswith(EVENT_STREAM):
            answer = Response(remote.status, remote.headers, await remote.read())
            if answer.status == 500 and refused.search(answer.text):
                raise InvalidRequest(message_of(answer))
            return answer.body, headers, answer.status
        await response.start(headers, remote.status)
        async for chunk in remote.chunks():
            await response.write(chunk)
    return None


def _headers(remote: StreamedResponse, held: HeldModel, infer_s: float) -> Headers:
    """The engine's, and how the response came about."""
    kept = [each for each in remote.headers.items() if each[0] in {"content-type", "cache-control"}]
    stages = {**held.stages, Stage.INFER: infer_s}
    return [*kept, ("x-pilotlight-start", held.acquired.start), server_timing(stages)]
