"""OpenAI answer documents: completions and chat (whole, in chunks), embeddings, images, models."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from runtime.protocols.response import event

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from registry.domain.model import ModelName
    from runtime.generation.engine import Finish

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int

    def document(self) -> dict[str, int]:
        """As OpenAI writes it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How completions (`is_chat` off) or chat completions are written."""

    is_chat: bool
    id: str
    model: str
    created_s: int

    def whole(self, texts: Sequence[str], finishes: Sequence[Finish], usage: TokenUsage) -> bytes:
        """An answer that is not streamed."""
        choices = [
            {"index": index, **self._text(text), "logprobs": None, "finish_reason": finish}
            for index, (text, finish) in enumerate(zip(texts, finishes, strict=True))
        ]
        return orjson.dumps({**self._head(""), "choices": choices, "usage": usage.document()})

    def _text(self, text: str) -> dict[str, Any]:
        if self.is_chat:
            return {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"text": text}

    def opening(self, index: int, *, wants_usage: bool) -> bytes:
        """The event that begins a choice; completions have none."""
        if not self.is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event(index, {"delta": delta}, None, wants_usage=wants_usage)

    def chunk(self, index: int, text: str, finish: Finish | None, *, wants_usage: bool) -> bytes:
        """The event of new text, or of a choice's end; empty where there is neither."""
        if not text and finish is None:
            return b""
        if not self.is_chat:
            return self._event(index, {"text": text}, finish, wants_usage=wants_usage)
        events = b""
        if text:
            events = self._event(index, {"delta": {"content": text}}, None, wants_usage=wants_usage)
        if finish is not None:
            events += self._event(index, {"delta": {}}, finish, wants_usage=wants_usage)
        return events

    def usage_event(self, usage: TokenUsage) -> bytes:
        """The event before the last, where the caller asked for it."""
        return event({**self._head(".chunk"), "choices": [], "usage": usage.document()})

    def _event(
        self, index: int, content: dict[str, Any], finish: Finish | None, *, wants_usage: bool
    ) -> bytes:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": finish}
        document = {**self._head(".chunk"), "choices": [choice]}
        if wants_usage:
            document["usage"] = None
        return event(document)

    def _head(self, chat_suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{chat_suffix}" if self.is_chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}


def embeddings(
    vectors: npt.NDArray[np.float32], *, model: str, prompt_tokens: int, is_base64: bool
) -> bytes:
    """The answer with one vector per input; `vectors` has shape (inputs, dimension)."""
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


def images(pictures: Sequence[str], *, created_s: int) -> bytes:
    """The answer with one picture each, PNG in base64."""
    data = [{"b64_json": picture} for picture in pictures]
    return orjson.dumps({"created": created_s, "data": data, "output_format": "png"})


def model_card(name: ModelName) -> dict[str, Any]:
    """One model of the list; the registry keeps no dates, so `created` is 0."""
    short = name.name if name.namespace == "default" else str(name)
    return {"id": short, "object": "model", "created": 0, "owned_by": name.namespace}


def model_list(names: Sequence[ModelName]) -> bytes:
    """All models."""
    return orjson.dumps({"object": "list", "data": [model_card(name) for name in names]})
