"""Text of a step as it is generated: OpenAI's completions, as server-sent events.

Without a temperature the likeliest tokens are taken, and the seed follows from the step, so that
another attempt gives the same text.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from common.inference_protocol.errors import InvalidRequest
from common.inference_protocol.tensors import BYTES
from common.shown_value import shown
from workflows.service.errors import StepError, StepLost
from workflows.service.tensors import StoredTensor, plain_value, text_tensor

_DONE: Final = b"[DONE]"
_WHOLE: Final = ("max_tokens", "seed")
_NUMBERS: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
OPTIONS: Final = (*_WHOLE, *_NUMBERS, "stop")
"""Inputs of a streamed step beside its text: fields of OpenAI's completions."""


def completion_body(model: str, tensors: Sequence[StoredTensor], step: str) -> bytes:
    """The request of a streamed step; `step` names it. Raises StepError."""
    seed = int.from_bytes(hashlib.sha256(step.encode()).digest()[:6])
    document: dict[str, Any] = {"model": model, "stream": True, "temperature": 0, "seed": seed}
    for tensor in tensors:
        field = "prompt" if tensor.name == "text" else tensor.name
        document[field] = _value(field, tensor)
    if "prompt" not in document:
        raise StepError(
            f"a step that is iterated takes a text: model {model} was called without one",
            "bad-input",
            400,
        )
    return orjson.dumps(document)


def _value(field: str, tensor: StoredTensor) -> Any:
    try:
        value = plain_value(tensor)
    except InvalidRequest as error:
        raise StepError(str(error), "bad-input", 400) from error
    is_text = tensor.datatype == BYTES and isinstance(value, str)
    is_number = isinstance(value, int | float)
    match field:
        case "prompt" if is_text:
            return value
        case "stop" if tensor.datatype == BYTES:
            return value
        case _ if field in _WHOLE and is_number:
            return int(value)
        case _ if field in _NUMBERS and is_number:
            return round(value, 6)  # as written: numbers are FP32
    raise StepError(
        f"input {field!r} of a step that is iterated was {shown(value)}; it takes one text "
        f"and, as numbers or texts, {', '.join(OPTIONS)}",
        "bad-input",
        400,
    )


class CompletionStream:
    """Reads the events of one completion."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._rest = b""
        self._pieces: list[str] = []
        self._is_done = False
        self._error: tuple[str, str, int] | None = None
        """The arguments of a StepError: raised itself, a kept one would be a cycle."""

    def feed(self, data: bytes) -> None:
        """More of the response's body."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(b"data:") and self._error is None:
                self._on_event(event[5:].strip())

    def _on_event(self, data: bytes) -> None:
        if data == _DONE:
            self._is_done = True
            return
        try:
            document = orjson.loads(data)
            if "error" in document:
                self._error = (str(document["error"]["message"]), "step-failed", 502)
                return
            piece = "".join(str(each["text"]) for each in document["choices"])
        except (ValueError, KeyError, TypeError) as error:
            self._error = (
                f"the pod's event is none of a completion: {data[:80]!r} ({error!r})",
                "bad-output",
                502,
            )
            return
        if piece:
            self._pieces.append(piece)
            self._on_text(piece)

    def outputs(self) -> dict[str, StoredTensor]:
        """The whole text, once the response has ended. Raises StepError, StepLost."""
        if self._error is not None:
            raise StepError(*self._error)
        if not self._is_done:
            raise StepLost("the text broke off")
        return {"text": text_tensor("text", "".join(self._pieces))}


class StreamedText:
    """A text as a model generates it, perhaps again after its pod was lost."""

    def __init__(self) -> None:
        self.value = ""
        self.differs = False
        """Another attempt gave another text than the one before."""
        self._before = ""

    def begin(self) -> None:
        """An attempt generates the text from its beginning."""
        self._before = max(self._before, self.value, key=len)
        self.value = ""

    def append(self, piece: str) -> None:
        self.value += piece
        if not self._before.startswith(self.value) and not self.value.startswith(self._before):
            self.differs = True


def text_of(model: str, outputs: Mapping[str, StoredTensor]) -> str:
    """The text in the outputs of a step that has ended. Raises StepError where there is none."""
    texts = {name: each for name, each in outputs.items() if each.datatype == BYTES}
    if "text" in texts or len(texts) == 1:
        value = plain_value(texts.get("text") or next(iter(texts.values())))
        return value if isinstance(value, str) else "\n".join(map(str, value))
    raise StepError(
        f"`async for` iterates a text; the outputs of model {model} are: "
        f"{', '.join(sorted(outputs))}",
        "unknown-output",
        422,
    )
