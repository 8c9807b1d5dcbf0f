"""OpenAI's routes at the pod, for all declared models.

The body's `model` names the model, as `name` or `namespace/name`. The gateway sends requests with
the model in the path: `/serving/NAMESPACE~NAME/openai/v1/…`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor
from registry.domain.pod import Stage
from runtime.errors import ModelNotFound, RemotePodUnreachable
from runtime.generation.engine import Finish
from runtime.inference_request import RequestHead
from runtime.openai.endpoint import (
    DONE,
    Call,
    CompletionFormat,
    Endpoint,
    Inferences,
    Through,
    model_card,
    model_list,
    openai_error,
    parse_model_name,
    token_usage,
)
from runtime.openai.engine_routes import EngineRoutes
from runtime.openai.requests import (
    Body,
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    InvalidField,
    ModelBody,
    Unsupported,
)
from runtime.protocols.asgi_app import JSON, Headers, HttpResponse, server_timing
from runtime.protocols.routes import error_as_response
from runtime.serving.generation_service import (
    Conversation,
    Generation,
    GenerationRequest,
    GenerationService,
    Prompt,
    TextDelta,
)
from runtime.serving.predict_service import PredictService
from runtime.tasks.text_to_image import (
    MAX_GUIDANCE,
    MAX_IMAGES,
    MAX_SEED,
    MAX_SIDE,
    MAX_STEPS,
    SideLimits,
    TextToImage,
)

GenerationCall = Call[ChatBody] | Call[CompletionBody]

COMPLETION_TOKENS = 16
"""OpenAI's default for completions."""
CHAT_TOKENS = 512
"""Default for chat, where OpenAI has none: a model without an end token would fill its context."""
EVENTS = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]
FORWARDED = ("content-type", "cache-control", "retry-after", "x-pilotlight-not-executed",
             "x-pilotlight-start", "server-timing")  # fmt: skip


class _ResponseWriter:
    """Turns the new text of all choices into a response, whole or in events."""

    def __init__(
        self,
        generation: Generation,
        body: ChatBody | CompletionBody,
        form: CompletionFormat,
        response: HttpResponse,
    ) -> None:
        self._generation = generation
        self._form = form
        self._response = response
        self._is_stream = bool(body.stream)
        count = len(generation.prompts_ids) * (body.n or 1)
        self._texts = [""] * count
        self._finishes = [Finish.STOP] * count
        self._token_total = 0
        self._began_s = time.monotonic()
        self._writing = asyncio.Lock()
        """Choices are generated concurrently; the response's head is sent before any of them."""

    async def write(self, delta: TextDelta) -> None:
        self._token_total += delta.token_count
        if not self._is_stream:
            self._texts[delta.index] += delta.text
            self._finishes[delta.index] = delta.finish or Finish.STOP
            return
        async with self._writing:
            await self._write_events(delta)

    async def _write_events(self, delta: TextDelta) -> None:
        events = self._form.delta_events(delta.index, delta.text, delta.finish)
        if not self._response.status:
            await self._response.start([*EVENTS, *self._provenance_headers()])
            first_events = map(self._form.first_event, range(len(self._texts)))
            events = b"".join(first_events) + events
        if events:
            await self._response.write(events)

    async def finish(self) -> None:
        """Send the rest: all choices are complete."""
        usage = token_usage(sum(map(len, self._generation.prompts_ids)), self._token_total)
        if self._is_stream:
            last = self._form.usage_event(usage) if self._form.wants_usage else b""
            await self._response.finish(last + DONE)
        else:
            content = self._form.response(self._texts, self._finishes, usage)
            await self._response.send(content, [*JSON, *self._provenance_headers()])

    def _provenance_headers(self) -> Headers:
        """How the response came about; of a stream `infer` lasts until its first token."""
        generation = self._generation
        stages = {**generation.stages, Stage.INFER: time.monotonic() - self._began_s}
        return [("x-pilotlight-start", generation.start), server_timing(stages)]


def _generation_request(body: ChatBody | CompletionBody) -> GenerationRequest:
    is_chat = isinstance(body, ChatBody)
    return GenerationRequest(
        prompts=_prompts(body),
        max_new_tokens=body.max_new_tokens,
        default_tokens=CHAT_TOKENS if is_chat else COMPLETION_TOKENS,
        choices=body.n or 1,
        stops=body.stops,
        seed=body.seed,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=None if body.top_k is None else max(0, body.top_k),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        min_tokens=body.min_tokens,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=body.biases,
        stop_ids=frozenset(body.stop_token_ids or ()),
        ignores_end=bool(body.ignore_eos),
        keeps_stop=bool(body.include_stop_str_in_output),
        keeps_special=body.skip_special_tokens is False,
        truncates_to=body.truncate_prompt_tokens,
    )


def _prompts(body: ChatBody | CompletionBody) -> Sequence[Prompt]:
    if isinstance(body, ChatBody):
        messages = [message.for_template() for message in body.messages]
        return [Conversation(messages, body.template_options)]
    return body.prompts


PREFIX = "/openai/v1"
CHAT, COMPLETIONS, EMBEDDINGS = "chat/completions", "completions", "embeddings"
RESPONSES = "responses"
Serve = Callable[[Call[Body]], Coroutine[object, object, None]]


@dataclass(frozen=True, slots=True)
class OpenAIRoutes:
    service: PredictService
    generations: GenerationService
    max_body_bytes: int

    @property
    def engines(self) -> EngineRoutes:
        return EngineRoutes(self.generations)

    def table(self) -> list[Route]:
        service, limit = self.service, self.max_body_bytes
        inferences = Inferences(service)
        make = partial(make_images, inferences)

        def endpoint(path: str, kind: type[Body], serve: Serve[Body] | None) -> Endpoint[Body]:
            return Endpoint(service, limit, kind, serve, partial(self._through, path))

        endpoints: Mapping[str, ASGIApp] = {
            CHAT: endpoint(CHAT, ChatBody, self._complete),
            COMPLETIONS: endpoint(COMPLETIONS, CompletionBody, self._complete),
            RESPONSES: endpoint(RESPONSES, ModelBody, None),
            EMBEDDINGS: endpoint(EMBEDDINGS, EmbeddingBody, inferences.embed),
            "images/generations": endpoint("images/generations", ImageBody, make),
        }
        return [
            Route(f"{PREFIX}/models", self._models, methods=["GET"]),
            Route(f"{PREFIX}/models/{{model:path}}", self._model, methods=["GET"]),
            *(
                Route(f"{prefix}/{path}", endpoint, methods=["POST"])
                for prefix in (PREFIX, f"/serving/{{model}}{PREFIX}")
                for path, endpoint in endpoints.items()
            ),
        ]

    async def _models(self, request: Request) -> Response:
        """All declared models: requests may name each of them, warm or cold."""
        return Response(model_list(self.service.catalog.names()), media_type="application/json")

    async def _model(self, request: Request) -> Response:
        name = parse_model_name(request.path_params["model"])
        if self.service.catalog.record(name) is None:
            return error_as_response(ModelNotFound(f"model {name} is not declared"), openai_error)
        return Response(orjson.dumps(model_card(name)), media_type="application/json")

    async def _through(self, path: str, request: Through) -> Coroutine[object, object, None] | None:
        """What serves a request for a model of an engine; None: for another one."""
        call = await self.engines.find(request)
        if call is None:
            return None
        if call.head.predict_address in {None, self.service.address}:
            return self.engines.serve(path, call, request.response)
        return self._forward(path, call.head, request.content, request.response)

    async def _complete(self, call: GenerationCall) -> None:
        if call.head.predict_address in {None, self.service.address}:
            await self._generate(call)
        else:
            path = CHAT if isinstance(call.body, ChatBody) else COMPLETIONS
            await self._forward(path, call.head, call.content, call.response)

    async def _generate(self, call: GenerationCall) -> None:
        """Respond; the end of the response is sent after the slot is free for a next request."""
        is_chat = isinstance(call.body, ChatBody)
        response_id = f"{'chatcmpl' if is_chat else 'cmpl'}-{call.head.id}"
        form = CompletionFormat(
            is_chat, response_id, call.body.model, int(time.time()), call.body.wants_usage
        )
        async with self.generations.open(call.head, _generation_request(call.body)) as generation:
            writer = _ResponseWriter(generation, call.body, form, call.response)
            await generation.run(writer.write)
        await writer.finish()

    async def _forward(
        self, path: str, head: RequestHead, content: bytes, response: HttpResponse
    ) -> None:
        """Respond with another pod's response, chunk by chunk."""
        if not await self.service.catalog.is_pod(head.predict_address):
            raise RemotePodUnreachable(f"predict pod {head.predict_address} is not registered")
        path = f"/serving/{head.model.path_segment}{PREFIX}/{path}"
        with self.service.in_flight.admit(head):
            async with self.service.remote.forward(head, path, content) as remote:
                kept = [
                    (name, remote.headers[name]) for name in FORWARDED if name in remote.headers
                ]
                pod = remote.headers.get("x-pilotlight-pod", "")
                await response.start([*kept, ("x-pilotlight-predict-pod", pod)], remote.status)
                async for chunk in remote.chunks():
                    await response.write(chunk)
        await response.finish()


class ImageBody(ModelBody):
    """The body; the fields below `size` are not OpenAI's."""

    unsupported: ClassVar[Unsupported] = {
        "response_format": ("b64_json",),
        "stream": (False,),
        "partial_images": (0,),
        "output_format": ("png",),
        "output_compression": (100,),
        "background": ("auto", "opaque"),
        "quality": ("auto", "standard"),
        "style": (),
    }
    ignored: ClassVar[frozenset[str]] = ModelBody.ignored | {"moderation"}
    prompt: str
    n: Annotated[int, Field(ge=1, le=MAX_IMAGES)] | None = None
    size: Annotated[str, Field(pattern=r"^(auto|[0-9]{1,4}x[0-9]{1,4})$")] | None = None
    negative_prompt: str | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=MAX_GUIDANCE)] | None = None


async def make_images(inferences: Inferences, call: Call[ImageBody]) -> None:
    processor = await inferences.processor(call.head, TextToImage, "make images")
    await inferences.serve(call, _inputs(call.body, processor.sides), _encode)


def _encode(outputs: Sequence[Tensor]) -> bytes:
    """The response body, with one PNG image in base64 per output."""
    (images,) = outputs
    data = [{"b64_json": image.decode()} for image in images.data]
    return orjson.dumps({"created": int(time.time()), "data": data, "output_format": "png"})


def _inputs(body: ImageBody, sides: SideLimits) -> list[Tensor]:
    """A prompt and a seed per image, and parameters that all images share; raises InvalidField."""
    width, height = _size(body, sides)
    first_seed = secrets.randbelow(MAX_SEED) if body.seed is None else body.seed
    count = body.n or 1
    inputs = [
        bytes_tensor("prompt", [body.prompt.encode()] * count),
        numeric_tensor(
            "seed", np.array([(first_seed + index) % (MAX_SEED + 1) for index in range(count)])
        ),
        numeric_tensor("width", np.array([width])),
        numeric_tensor("height", np.array([height])),
    ]
    if body.negative_prompt is not None:
        inputs.append(bytes_tensor("negative_prompt", [body.negative_prompt.encode()]))
    if body.num_inference_steps is not None:
        inputs.append(numeric_tensor("num_inference_steps", np.array([body.num_inference_steps])))
    if body.guidance_scale is not None:
        inputs.append(numeric_tensor("guidance_scale", np.array([body.guidance_scale])))
    return inputs


def _size(body: ImageBody, sides: SideLimits) -> tuple[int, int]:
    if body.size in {None, "auto"}:
        return sides.default, sides.default
    width, height = (int(side) for side in str(body.size).split("x"))
    if not sides.allow(width) or not sides.allow(height):
        raise InvalidField(
            f"size must be WIDTHxHEIGHT, each a multiple of {sides.multiple} from"
            f" {sides.multiple} to {MAX_SIDE}, was {body.size!r}",
            param="size",
        )
    return width, height
