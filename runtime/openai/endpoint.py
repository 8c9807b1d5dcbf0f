"""OpenAI's endpoints on ASGI: from a request's bytes to a checked body and its model; documents."""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
from starlette.types import Receive, Scope, Send

from common.inference_protocol import BodyTooLarge, InvalidRequest
from common.inference_protocol.bodies import EncodedBody, V2Request
from common.inference_protocol.tensors import Tensor, bytes_tensor
from registry.domain.model import ModelName
from runtime.errors import ModelNotFound, PromptTooLong
from runtime.generation.engine import Finish
from runtime.inference_request import DecodedBody, RequestHead, WireProtocol, parse_request_head
from runtime.openai.checks import parse_openai_body
from runtime.openai.requests import Body, EmbeddingBody, InvalidField
from runtime.protocols.asgi_app import (
    JSON,
    Failure,
    HttpResponse,
    common_headers,
    error_status,
    headers_of,
    provenance_headers,
    receive_body,
    respond,
    server_sent_event,
    stage_of,
)
from runtime.serving.in_flight import while_connected
from runtime.serving.predict_service import PredictService
from runtime.tasks.embedding import Embedding
from runtime.threads import SMALL_BODY_BYTES, in_thread

DONE = b"data: [DONE]\n\n"
ERROR_TYPES: Mapping[int, str] = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.NOT_FOUND: "invalid_request_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "invalid_request_error",
    HTTPStatus.UNPROCESSABLE_ENTITY: "invalid_request_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "service_unavailable_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""OpenAI's error type of each status; `server_error` for all others."""


def openai_error(error: Failure) -> object:
    """The body of an error: `{"error": {"message", "type", "param", "code"}}`."""
    param = error.param if isinstance(error, InvalidField) else None
    code = error.code if isinstance(error, InvalidField) else None
    if isinstance(error, ModelNotFound):
        param, code = "model", "model_not_found"
    if isinstance(error, PromptTooLong):
        code = "context_length_exceeded"
    kind = ERROR_TYPES.get(error_status(error), "server_error")
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def token_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


@dataclass(frozen=True, slots=True)
class CompletionFormat:
    """The documents of one completion, or of one chat completion if `is_chat`."""

    is_chat: bool
    id: str
    model: str
    created_s: int
    wants_usage: bool = False
    """Whether events have a field `usage`, as OpenAI's do if the client requests the usage."""

    def response(
        self, texts: Sequence[str], finishes: Sequence[Finish], usage: Mapping[str, int]
    ) -> bytes:
        """A response that is not streamed."""
        choices = [
            {"index": index, **self._text(text), "logprobs": None, "finish_reason": finish}
            for index, (text, finish) in enumerate(zip(texts, finishes, strict=True))
        ]
        return orjson.dumps({**self._head(""), "choices": choices, "usage": usage})

    def _text(self, text: str) -> dict[str, Any]:
        if self.is_chat:
            return {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"text": text}

    def first_event(self, index: int) -> bytes:
        """The event that begins a choice of a chat; completions have none."""
        if not self.is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event(index, {"delta": delta}, None)

    def delta_events(self, index: int, text: str, finish: Finish | None) -> bytes:
        """The events of new text and of a choice's end; empty if there is neither."""
        if not text and finish is None:
            return b""
        if not self.is_chat:
            return self._event(index, {"text": text}, finish)
        events = b""
        if text:
            events = self._event(index, {"delta": {"content": text}}, None)
        if finish is not None:
            events += self._event(index, {"delta": {}}, finish)
        return events

    def usage_event(self, usage: Mapping[str, int]) -> bytes:
        """The event before `DONE`, sent if the client requests it."""
        return server_sent_event({**self._head(".chunk"), "choices": [], "usage": usage})

    def _event(self, index: int, content: dict[str, Any], finish: Finish | None) -> bytes:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": finish}
        document = {**self._head(".chunk"), "choices": [choice]}
        if self.wants_usage:
            document["usage"] = None
        return server_sent_event(document)

    def _head(self, chat_suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{chat_suffix}" if self.is_chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}


def embeddings(
    vectors: npt.NDArray[np.float32], *, model: str, prompt_tokens: int, is_base64: bool
) -> bytes:
    """The response with one vector per input; `vectors` has shape (inputs, dimension)."""
    little = vectors.astype("<f4", copy=False)
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.tobytes()).decode()
            if is_base64
            else vector.tolist(),
        }
        for index, vector in enumerate(little)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def model_card(name: ModelName) -> dict[str, Any]:
    """One model of the list; the registry keeps no dates, so `created` is 0."""
    short = name.name if name.namespace == "default" else str(name)
    return {"id": short, "object": "model", "created": 0, "owned_by": name.namespace}


def model_list(names: Sequence[ModelName]) -> bytes:
    return orjson.dumps({"object": "list", "data": [model_card(name) for name in names]})


MAX_BYTES: Final = 4 * 1024**2
"""Longest body: a million tokens of text, more than any model reads; each part of it is checked."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Body]):
    """A request that was received, and its response."""

    head: RequestHead
    body: Body
    content: bytes
    """The body as it was received."""
    response: HttpResponse


@dataclass(frozen=True, slots=True)
class Through:
    """A request that was received and not read yet."""

    path_model: str | None
    headers: Mapping[str, str]
    content: bytes
    response: HttpResponse


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Body]):
    """An ASGI application; `serve` is cancelled if the client disconnects.

    Errors of `serve` become error responses.
    """

    service: PredictService
    max_body_bytes: int
    body_class: type[Body]
    serve: Callable[[Call[Body]], Coroutine[object, object, None]] | None
    """None: only engines of their own have the route."""
    through: Callable[[Through], Coroutine[object, object, Coroutine[object, object, None] | None]]
    """What serves the request if an engine of its own runs its model; None: `serve` does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        response = HttpResponse(send, common_headers(self.service.pod_name, headers), openai_error)
        work = self._receive(scope["path_params"].get("model"), headers, receive, response)
        await respond(response, stage_of(headers), work)

    async def _receive(
        self,
        path_model: str | None,
        headers: Mapping[str, str],
        receive: Receive,
        response: HttpResponse,
    ) -> None:
        has_engines = self.service.processors.engines is not None  # they take images
        max_bytes = self.max_body_bytes if has_engines else min(self.max_body_bytes, MAX_BYTES)
        content = await receive_body(headers, receive, max_bytes, self.service.in_flight)
        if has_engines:
            through = await self.through(Through(path_model, headers, content, response))
            if through is not None:
                await while_connected(receive, through)
                return
            if len(content) > MAX_BYTES:
                raise BodyTooLarge(f"the body may have {MAX_BYTES} bytes, has {len(content)}")
        if self.serve is None:
            raise InvalidRequest(
                "only models that vLLM runs have this route (the pod's --engine-python): use"
                " chat/completions"
            )
        if len(content) <= SMALL_BODY_BYTES:
            body = parse_openai_body(self.body_class, content)
        else:
            body = await in_thread(
                self.service.threads, parse_openai_body, self.body_class, content
            )
        head = parse_head(path_model, body.model, headers)
        await while_connected(receive, self.serve(Call(head, body, content, response)))


def parse_model_name(text: str) -> ModelName:
    """The model that a client names `name`, `namespace/name` or `namespace~name`."""
    return ModelName.from_path_segment(text) if "~" in text else ModelName.parse(text)


def parse_head(path_model: str | None, body_model: str, headers: Mapping[str, str]) -> RequestHead:
    """The head of a request; raises ModelNotFound if path and body name different models.

    The body may also name the stable version of a canary: the gateway sends that name in
    `x-pilotlight-model-name`, and responses carry it.
    """
    model = parse_model_name(body_model)
    if path_model is not None:
        addressed = ModelName.from_path_segment(path_model)
        public_name = headers.get("x-pilotlight-model-name")
        if body_model not in (addressed.name, str(addressed), addressed.path_segment, public_name):
            raise ModelNotFound(f"the body names model {body_model!r}, the path {addressed}")
        model = addressed
    return parse_request_head(model.path_segment, headers)


Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Inferences:
    """Runs inferences on tensors and responds with documents of the OpenAI API."""

    service: PredictService

    async def processor(self, head: RequestHead, kind: type[Kind], ability: str) -> Kind:
        """The model's processor; raises InvalidRequest if it is not of class `kind`.

        Also raises as `InFlightRequests.check_admission` does, before any file is fetched.
        """
        self.service.in_flight.check_admission(head)
        spec = await self.service.catalog.find(head.model, head.generation)
        processor = await self.service.processors.get(spec)
        if not isinstance(processor, kind):
            raise InvalidRequest(f"model {spec.name} does not {ability}")
        return processor

    async def serve(
        self,
        call: Call[Body],
        inputs: Sequence[Tensor],
        encode: Callable[[Sequence[Tensor]], bytes],
    ) -> None:
        """Infer, and respond with the outputs as JSON; `encode` runs in a thread."""
        result = await self.service.predict(
            call.head,
            WireProtocol.V2,
            DecodedBody(v2=V2Request(tuple(inputs))),
            encode=lambda outputs: EncodedBody(encode(outputs), tuple(JSON)),
        )
        headers = [*result.body.headers, *provenance_headers(result)]
        await call.response.send(result.body.content, headers)

    async def embed(self, call: Call[EmbeddingBody]) -> None:
        """`/openai/v1/embeddings`."""
        processor = await self.processor(call.head, Embedding, "embed texts")
        inputs = _inputs(processor, call.body)
        await self.serve(call, inputs, partial(_encode, processor, call.body))


def _inputs(processor: Embedding, body: EmbeddingBody) -> Sequence[Tensor]:
    """The V2 inputs of a request; raises InvalidField."""
    texts = [each.encode() for each in body.inputs if isinstance(each, str)]
    rows = [each for each in body.inputs if not isinstance(each, str)]
    _check_tokens(rows, processor.vocabulary)
    return processor.preprocess(rows) if rows else [bytes_tensor("text", texts)]


def _encode(processor: Embedding, body: EmbeddingBody, outputs: Sequence[Tensor]) -> bytes:
    """The document of a response."""
    (vectors,) = outputs
    return embeddings(
        vectors.data,
        model=body.model,
        prompt_tokens=processor.count_tokens(body.inputs),
        is_base64=body.encoding_format == "base64",
    )


def _check_tokens(rows: Sequence[list[int]], vocabulary: int) -> None:
    """Raise InvalidField for a token that the model does not have."""
    for row in rows:
        if wrong := [each for each in row if not 0 <= each < vocabulary]:
            raise InvalidField(
                f"input: tokens must be from 0 to {vocabulary - 1}, was {wrong[0]}", param="input"
            )
