"""The values that workflows see, as V2 tensors of pods, and texts streamed as they are generated.

A value is one row: its tensor gets a first dimension of 1, and loses it again when it is fetched.
"""

import base64
import binascii
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

import numpy as np
import orjson

from common.inference_protocol import InvalidRequest, PodError
from common.inference_protocol.bodies import BINARY_SIZE, EncodedBody, TensorEntry, request_body
from common.inference_protocol.bodies import read_outputs as read_entries
from common.inference_protocol.encodings import from_json, from_raw, to_raw
from common.inference_protocol.tensors import (
    BYTES,
    DATATYPE_OF,
    Tensor,
    TensorReference,
    TensorSpec,
    bytes_tensor,
    does_not_fit,
    numeric_tensor,
    parse_tensor_spec,
)
from common.shown_value import shown
from workflows.errors import StepLost, WorkflowError

_MAX_EMPTY_LISTS: Final = 1 << 16
"""In a tensor without values, which has no bytes whatever its shape says."""
_NUMBERS_OR_NULL: Final = (float, int, type(None))


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a pod sent it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes
    kept: TensorReference | None = None
    """A pod that has it; `raw` is empty until the data is fetched."""

    @property
    def size_bytes(self) -> int:
        return len(self.raw) if self.kept is None else self.kept.size_bytes

    @property
    def is_elsewhere(self) -> bool:
        return self.kept is not None and not self.raw


def tensor_of(name: str, argument: Mapping[str, Any]) -> StoredTensor:
    """The input `name` of a written argument that is no reference. Raises InvalidRequest."""
    path = f"input {name!r}"
    match argument:
        case {"base64": str(text)}:
            try:
                content = base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise InvalidRequest(f"{path} is no base64: {error}") from error
            return _stored(bytes_tensor(name, [content]))
        case {"tensor": {"datatype": str(datatype), "shape": list(shape), "data": list(data)}}:
            spec = replace(parse_tensor_spec(path, datatype, shape, path), name=name)
            return _stored(from_json(data, spec))
        case {"value": value}:
            return _of_value(name, value)
    raise InvalidRequest(f"{path} is neither a value nor a tensor")


def text_tensor(name: str, text: str) -> StoredTensor:
    return _stored(bytes_tensor(name, [text.encode()]))


def _stored(tensor: Tensor) -> StoredTensor:
    return StoredTensor(tensor.name, tensor.datatype, tensor.shape, to_raw(tensor))


def _loaded(tensor: StoredTensor) -> Tensor:
    path = f"output {tensor.name!r}"
    spec = TensorSpec(tensor.name, tensor.datatype, tensor.shape, path)
    return from_raw(memoryview(tensor.raw), spec)


def _of_value(name: str, value: Any) -> StoredTensor:
    if isinstance(value, str):
        return text_tensor(name, value)
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return _stored(bytes_tensor(name, [each.encode() for each in value]))
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidRequest(f"input {name!r} has rows of different lengths") from error
    if array.dtype == object and all(type(each) in _NUMBERS_OR_NULL for each in array.flat):
        array = array.astype(np.float64)  # NaN, which JSON writes as null
    if array.dtype not in DATATYPE_OF or array.size == 0:
        raise InvalidRequest(
            f"input {name!r} must be a text, a number or lists of numbers, was {shown(value)}"
        )
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            narrow = array.astype(np.float32)
        if not np.array_equal(np.isfinite(narrow), np.isfinite(array)):
            spec = TensorSpec(name, "FP32", array.shape, f"input {name!r}")
            raise does_not_fit(array[np.isfinite(array)].tolist(), "value", spec)
        array = narrow
    return _stored(numeric_tensor(name, array[np.newaxis]))


def plain_value(tensor: StoredTensor) -> Any:
    """The tensor as JSON, without a first dimension of 1. Raises InvalidRequest."""
    if 0 in tensor.shape and math.prod(takewhile(bool, tensor.shape)) > _MAX_EMPTY_LISTS:
        shape = list(tensor.shape)
        raise InvalidRequest(f"output {tensor.name!r} has shape {shape}: too many empty lists")
    data = _loaded(tensor).data
    if tensor.datatype == BYTES:
        data = np.vectorize(_text, otypes=[object])(data) if data.size else data
    values = data.tolist()
    return values[0] if tensor.shape and tensor.shape[0] == 1 else values


def _text(item: bytes) -> str:
    try:
        return item.decode()
    except UnicodeDecodeError:
        return base64.b64encode(item).decode()


def single_item(tensor: StoredTensor) -> bytes:
    """The text or bytes of a tensor that holds one. Raises InvalidRequest."""
    items = _loaded(tensor).data.ravel().tolist() if tensor.datatype == BYTES else []
    if len(items) != 1:
        raise InvalidRequest(f"{tensor.name!r} must be one text, has shape {list(tensor.shape)}")
    return bytes(items[0])


def body_outputs(status: int, body: bytes) -> dict[str, StoredTensor]:
    """The outputs of a graph's step: an HTTP status and a body."""
    return {
        "status": _stored(numeric_tensor("status", np.array([status], np.int64))),
        "body": _stored(bytes_tensor("body", [body])),
    }


def is_v2_body(body: bytes) -> bool:
    """Whether a JSON body is a request of the Open Inference Protocol."""
    try:
        document = orjson.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and "inputs" in document and "instances" not in document


def infer_body(tensors: Sequence[StoredTensor]) -> EncodedBody:
    """A V2 request with binary tensors, and references to those that pods keep."""
    entries = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": (
                {BINARY_SIZE: len(tensor.raw)}
                if tensor.kept is None
                else tensor.kept.as_parameters()
            ),
        }
        for tensor in tensors
    ]
    return request_body(entries, [tensor.raw for tensor in tensors if tensor.kept is None])


def read_outputs(body: bytes, header_length: str | None) -> dict[str, StoredTensor]:
    """Outputs of a V2 response, by name. Raises InvalidRequest."""
    try:
        return {each.spec.name: _output(each) for each in read_entries(body, header_length)}
    except PodError as error:
        raise InvalidRequest(f"the pod's response is no V2 response: {error}") from error


def _output(entry: TensorEntry) -> StoredTensor:
    spec = entry.spec
    if entry.reference is None and entry.raw is None:
        return _stored(from_json(entry.data, spec))
    raw = b"" if entry.raw is None else bytes(entry.raw)
    return StoredTensor(spec.name, spec.datatype, spec.shape, raw, entry.reference)


def outputs_bytes(outputs: Mapping[str, StoredTensor]) -> int:
    """Size of a step's outputs, wherever they are."""
    return sum(each.size_bytes for each in outputs.values())


_DONE: Final = b"[DONE]"
_WHOLE: Final = ("max_tokens", "seed")
_NUMBERS: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
OPTIONS: Final = (*_WHOLE, *_NUMBERS, "stop")
"""Inputs of a streamed step beside its text: fields of OpenAI's completions."""


def completion_body(model: str, tensors: Sequence[StoredTensor], step: str) -> bytes:
    """The request of a streamed step; `step` names it. Raises WorkflowError.

    Without a temperature the likeliest tokens are taken, and the seed follows from the step, so
    that another attempt gives the same text.
    """
    seed = int.from_bytes(hashlib.sha256(step.encode()).digest()[:6])
    document: dict[str, Any] = {"model": model, "stream": True, "temperature": 0, "seed": seed}
    for tensor in tensors:
        field = "prompt" if tensor.name == "text" else tensor.name
        document[field] = _value(field, tensor)
    if "prompt" not in document:
        raise WorkflowError(
            f"a step that is iterated takes a text: model {model} was called without one",
            "bad-input",
            400,
        )
    return orjson.dumps(document)


def _value(field: str, tensor: StoredTensor) -> Any:
    try:
        value = plain_value(tensor)
    except InvalidRequest as error:
        raise WorkflowError(str(error), "bad-input", 400) from error
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
    raise WorkflowError(
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
        """The arguments of a WorkflowError: raised itself, a kept one would be a cycle."""

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
        """The whole text, once the response has ended. Raises WorkflowError, StepLost."""
        if self._error is not None:
            raise WorkflowError(*self._error)
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
    """The text in the outputs of a step that has ended. Raises WorkflowError without one."""
    texts = {name: each for name, each in outputs.items() if each.datatype == BYTES}
    if "text" in texts or len(texts) == 1:
        try:
            value = plain_value(texts.get("text") or next(iter(texts.values())))
        except InvalidRequest as error:
            raise WorkflowError(str(error), "bad-output", 502) from error
        return value if isinstance(value, str) else "\n".join(map(str, value))
    raise WorkflowError(
        f"`async for` iterates a text; the outputs of model {model} are: "
        f"{', '.join(sorted(outputs))}",
        "unknown-output",
        422,
    )
