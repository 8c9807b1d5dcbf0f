"""OpenAI's response documents: completions and chat, embeddings, models, errors."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson

from registry.domain.model import ModelName
from runtime.errors import ModelNotFound, PromptTooLong
from runtime.generation.engine import Finish
from runtime.openai.requests import InvalidField
from runtime.protocols.asgi_app import Failure, error_status, server_sent_event

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
