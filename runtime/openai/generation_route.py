"""Completions and chat completions, whole or streamed, here or at another pod."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import RemotePodUnreachable
from runtime.generation.engine import Finish
from runtime.openai.answers import DONE, AnswerForm, TokenUsage
from runtime.openai.requests import ChatBody, CompletionBody
from runtime.protocols.response import JSON, server_timing
from runtime.serving.generation_service import GenerationRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.openai.exchange import Call
    from runtime.protocols.response import HttpResponse
    from runtime.registration.model_catalog import ModelCatalog
    from runtime.serving.generation_service import Delta, GenerationService, Opened
    from runtime.serving.predict_service import PredictService
    from runtime.serving.remote_inference import RemoteInference
    from runtime.tasks.text_generation import TextGeneration
    from runtime.wire.request_head import RequestHead

COMPLETION_TOKENS = 16
"""OpenAI's default for completions; chat goes on to the end of the context."""
EVENTS = [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")]
PASSED_ON = ("content-type", "cache-control", "retry-after", "x-pilotlight-not-executed",
             "x-pilotlight-start", "server-timing")  # fmt: skip


@dataclass(frozen=True, slots=True)
class GenerationRoute:
    """Answers both endpoints."""

    service: PredictService
    generations: GenerationService
    catalog: ModelCatalog
    peers: RemoteInference

    async def answer(self, call: Call[ChatBody] | Call[CompletionBody]) -> None:
        """Answer one request."""
        if call.head.predict_address in {None, self.service.address}:
            await self._answer_here(call.head, call.body, call.reply)
        else:
            await self._forward(call)

    # Here

    async def _answer_here(
        self, head: RequestHead, body: ChatBody | CompletionBody, reply: HttpResponse
    ) -> None:
        """The last of the answer leaves when the slot is free, so that a next request finds it."""
        is_chat = isinstance(body, ChatBody)
        identity = f"{'chatcmpl' if is_chat else 'cmpl'}-{head.id}"
        form = AnswerForm(is_chat, identity, body.model, int(time.time()))
        async with self.generations.open(head, _wish(body)) as opened:
            answering = _Answering(opened, body, form, reply)
            await opened.generation.run(answering.take)
        await answering.finish()

    # At another pod

    async def _forward(self, call: Call[ChatBody] | Call[CompletionBody]) -> None:
        head, reply = call.head, call.reply
        if not await self.catalog.is_pod(head.predict_address):
            raise RemotePodUnreachable(f"predict pod {head.predict_address} is not registered")
        name = "chat/completions" if isinstance(call.body, ChatBody) else "completions"
        path = f"/serving/{head.name.path_segment}/openai/v1/{name}"
        async with (
            self.service.admitted(head),
            self.peers.forward(head, path, call.content) as answer,
        ):
            kept = [(name, answer.headers[name]) for name in PASSED_ON if name in answer.headers]
            pod = answer.headers.get("x-pilotlight-pod", "")
            await reply.begin([*kept, ("x-pilotlight-predict-pod", pod)], answer.status_code)
            async for piece in answer.aiter_raw():
                await reply.piece(piece)
        await reply.end()


class _Answering:
    """Turns new text into an answer, whole or in events."""

    def __init__(
        self, opened: Opened, body: ChatBody | CompletionBody, form: AnswerForm, reply: HttpResponse
    ) -> None:
        self._opened = opened
        self._form = form
        self._reply = reply
        self._is_stream = bool(body.stream)
        self._wants_usage = body.wants_usage
        count = body.n or 1
        self._texts = [""] * count
        self._finishes = [Finish.STOP] * count
        self._token_total = 0
        self._writing = asyncio.Lock()
        """Choices are made side by side; the answer's head goes out before any of them."""

    async def take(self, delta: Delta) -> None:
        """Some more of a choice."""
        self._token_total += delta.token_count
        if not self._is_stream:
            self._texts[delta.index] += delta.text
            self._finishes[delta.index] = delta.finish or Finish.STOP
            return
        async with self._writing:
            await self._write(delta)

    async def _write(self, delta: Delta) -> None:
        events = self._form.chunk(
            delta.index, delta.text, delta.finish, wants_usage=self._wants_usage
        )
        if self._reply.status is None:
            await self._reply.begin([*EVENTS, *_facts(self._opened)])
            openings = [
                self._form.opening(index, wants_usage=self._wants_usage)
                for index in range(len(self._texts))
            ]
            events = b"".join(openings) + events
        if events:
            await self._reply.piece(events)

    async def finish(self) -> None:
        """Everything is made."""
        usage = TokenUsage(self._opened.generation.prompt_tokens, self._token_total)
        if self._is_stream:
            last = self._form.usage_event(usage) if self._wants_usage else b""
            await self._reply.end(last + DONE)
        else:
            content = self._form.whole(self._texts, self._finishes, usage)
            await self._reply.whole(content, [*JSON, *_facts(self._opened)])


def _facts(opened: Opened) -> list[tuple[str, str]]:
    return [("x-pilotlight-start", opened.start), server_timing(opened.stages)]


def _wish(body: ChatBody | CompletionBody) -> GenerationRequest:
    is_chat = isinstance(body, ChatBody)
    return GenerationRequest(
        prompt_ids=_prompt_ids(body),
        max_new_tokens=body.max_new_tokens or (None if is_chat else COMPLETION_TOKENS),
        choices=body.n or 1,
        stops=body.stops,
        seed=body.seed,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=body.top_p or 1.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
    )


def _prompt_ids(body: ChatBody | CompletionBody) -> Callable[[TextGeneration], list[int]]:
    if isinstance(body, ChatBody):
        messages = [message.for_template() for message in body.messages]
        return lambda processor: processor.chat_ids(messages)
    match body.prompt:
        case str() as text:
            return lambda processor: processor.prompt_ids(text)
        case [str() as text]:
            return lambda processor: processor.prompt_ids(text)
        case token_ids:
            ids = [each for each in token_ids if isinstance(each, int)]
            return lambda processor: processor.check_ids(ids)
