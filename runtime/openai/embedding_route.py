"""Embeddings: an inference like any other, with OpenAI's bodies around it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.errors import InvalidRequest
from runtime.openai.answers import embeddings
from runtime.openai.exchange import Reply, answer_or_fail
from runtime.openai.generation_route import JSON, common_headers
from runtime.openai.naming import openai_head
from runtime.openai.requests import EmbeddingBody, read_openai_body
from runtime.protocols.bodies import Protocol
from runtime.protocols.client import read_whole, while_connected
from runtime.protocols.tensors import bytes_tensor
from runtime.protocols.v2 import LENGTH_HEADER, decode_outputs, encode_request
from runtime.tasks.embedding import Embedding
from runtime.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from starlette.types import Receive, Scope, Send

    from runtime.declared import DeclaredModels
    from runtime.loading.frontends import Frontends
    from runtime.protocols.request import RequestHead
    from runtime.service import Answer, PredictService
    from runtime.settings import PodSettings


class EmbeddingRoute:
    """The endpoint, as an ASGI application."""

    def __init__(
        self,
        settings: PodSettings,
        service: PredictService,
        frontends: Frontends,
        declared: DeclaredModels,
        threads: Executor,
    ) -> None:
        self._settings = settings
        self._service = service
        self._frontends = frontends
        self._declared = declared
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        reply = Reply(send, common_headers(self._settings.name, headers.get("x-request-id")))
        await answer_or_fail(reply, "entry", self._serve(scope, headers, receive, reply))

    async def _serve(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, reply: Reply
    ) -> None:
        content = await read_whole(receive, self._settings.max_body_bytes)
        body = read_openai_body(EmbeddingBody, content)
        head = openai_head(
            scope["path_params"].get("model"),
            body.model,
            headers,
            allow_simulated_work=self._settings.allow_simulated_work,
        )
        await while_connected(receive, self._answer(head, body, reply))

    async def _answer(self, head: RequestHead, body: EmbeddingBody, reply: Reply) -> None:
        spec = await self._declared.find(head.name, head.generation)
        frontend = await self._frontends.get(spec)
        if not isinstance(frontend, Embedding):
            raise InvalidRequest(f"model {spec.name} does not embed texts")
        texts = body.texts
        request = encode_request((bytes_tensor("text", [text.encode() for text in texts]),))
        lengths = dict(request.headers)
        answer = await self._service.answer(
            replace(head, v2_header_length=lengths.get(LENGTH_HEADER)), Protocol.V2, request.content
        )
        (vectors,) = decode_outputs(answer.body.content, dict(answer.body.headers)[LENGTH_HEADER])
        token_total = await in_thread(self._threads, frontend.count_tokens, texts)
        content = embeddings(
            vectors.data,
            model=body.model,
            prompt_tokens=token_total,
            is_base64=body.encoding_format == "base64",
        )
        await reply.whole(content, [*JSON, *_facts(answer)])


def _facts(answer: Answer) -> list[tuple[str, str]]:
    timings = ", ".join(
        f"{stage.value};dur={seconds * 1000:.3f}" for stage, seconds in answer.stages.items()
    )
    return [
        ("x-pilotlight-predict-pod", answer.predict_pod),
        ("x-pilotlight-start", answer.start),
        ("server-timing", timings),
    ]
