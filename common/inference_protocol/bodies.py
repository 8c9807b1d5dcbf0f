"""The Open Inference Protocol (V2) over REST: bodies to tensors and back, JSON and binary.

KServe's own codec turns binary tensors into Python lists; this one keeps them as buffers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from common.inference_protocol import BodyTooLarge, InvalidRequest
from common.inference_protocol.encodings import from_json, from_raw, to_json, to_raw
from common.inference_protocol.tensors import (
    RAW_ONLY,
    Tensor,
    TensorReference,
    TensorSpec,
    check_unique_names,
    parse_reference,
    parse_tensor_spec,
)
from common.shown_value import json_fault, kind_of, shown

KeptTensors = Mapping[str, Tensor]
"""Tensors that a pod has, by the identity that a request refers to them with."""


LENGTH_HEADER = "inference-header-content-length"
BINARY_TYPE = "application/octet-stream"
BINARY_SIZE = "binary_data_size"
MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client names, and whether it is sent in binary."""

    name: str
    is_binary: bool


@dataclass(frozen=True, slots=True)
class V2Request:
    inputs: tuple[Tensor, ...]
    id: str | None = None
    is_binary: bool = False
    """Whether outputs that the client does not name are sent in binary."""
    outputs: tuple[RequestedOutput, ...] = ()
    """The outputs to send, in this order; empty: all of them."""


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A body and the headers that describe its format."""

    content: bytes
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a body, in one of its forms: JSON, bytes, or a reference."""

    spec: TensorSpec
    data: Any = None
    raw: memoryview | None = None
    reference: TensorReference | None = None


def find_references(
    body: bytes, header_length: str | None
) -> list[tuple[TensorReference, TensorSpec]]:
    """References to kept tensors among a request's inputs, and what they are said to be.

    Raises InvalidRequest.
    """
    document, tail = split_body(body, header_length)
    inputs = document.get("inputs")
    if not isinstance(inputs, list):
        return []  # decoding says so
    entries = _read_entries(inputs, tail, "inputs")
    return [(each.reference, each.spec) for each in entries if each.reference is not None]


def decode_request(
    body: bytes, header_length: str | None, kept: KeptTensors | None = None
) -> V2Request:
    """The tensors of a request, references replaced by `kept`; raises InvalidRequest."""
    return decode_document(*split_body(body, header_length), kept)


def decode_document(
    document: dict[str, Any], tail: memoryview, kept: KeptTensors | None = None
) -> V2Request:
    """The tensors of a request's JSON and its binary tail; raises InvalidRequest."""
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise InvalidRequest("the body must hold an array 'inputs' with one tensor or more")
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise InvalidRequest(f"'id' must be a string, was {kind_of(request_id)}")
    is_binary = _flag(_parameters(document, "the body"), "binary_data_output", "the body")
    return V2Request(
        inputs=_decode_tensors(_read_entries(inputs, tail, "inputs"), "'inputs'", kept),
        id=request_id,
        is_binary=bool(is_binary),
        outputs=_parse_outputs(document.get("outputs"), is_binary=bool(is_binary)),
    )


def read_outputs(body: bytes, header_length: str | None) -> Iterator[TensorEntry]:
    """The tensors of a pod's response, not decoded; raises InvalidRequest, BodyTooLarge."""
    document, tail = split_body(body, header_length)
    outputs = document.get("outputs")
    if not isinstance(outputs, list):
        raise InvalidRequest("the response must hold an array 'outputs'")
    return _read_entries(outputs, tail, "outputs")


def decode_outputs(body: bytes, header_length: str | None) -> tuple[Tensor, ...]:
    """The tensors of a pod's response; raises InvalidRequest, BodyTooLarge."""
    return _decode_tensors(read_outputs(body, header_length), "'outputs'")


def encode_request(tensors: Sequence[Tensor]) -> EncodedBody:
    """A request whose inputs and outputs are all binary."""
    return request_body(*_encode_tensors([(tensor, True) for tensor in tensors]))


def request_body(entries: Sequence[dict[str, Any]], buffers: Sequence[bytes]) -> EncodedBody:
    """A request of entries and the buffers of those in binary, whose outputs are all binary."""
    return _encode_body({"inputs": entries, "parameters": {"binary_data_output": True}}, buffers)


def encode_response(
    tensors: Sequence[Tensor],
    *,
    model_name: str,
    request: V2Request,
    kept: Mapping[str, TensorReference] | None = None,
) -> EncodedBody:
    """A response in the encoding that the request selects; raises InvalidRequest.

    `kept`: by name, outputs that stay here: a reference is sent in place of their data.
    """
    entries, buffers = _encode_tensors(select_outputs(tensors, request), kept or {})
    document: dict[str, Any] = {"model_name": model_name, "outputs": entries}
    if request.id is not None:
        document["id"] = request.id
    return _encode_body(document, buffers)


def select_outputs(tensors: Sequence[Tensor], request: V2Request) -> list[tuple[Tensor, bool]]:
    """The requested outputs, each with whether it is sent in binary; raises InvalidRequest."""
    if not request.outputs:
        return [(tensor, request.is_binary) for tensor in tensors]
    by_name = {tensor.name: tensor for tensor in tensors}
    for output in request.outputs:
        if output.name not in by_name:
            raise InvalidRequest(
                f"'outputs' names {shown(output.name)}; the model has {sorted(by_name)}"
            )
    return [(by_name[output.name], output.is_binary) for output in request.outputs]


def split_body(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON document and the binary tail of a body; raises InvalidRequest, BodyTooLarge."""
    length = len(body)
    if header_length is not None:
        is_number = header_length.isascii() and header_length.isdecimal()
        length = int(header_length) if is_number and len(header_length) <= MAX_DIGITS else 0
        if not 0 < length <= len(body):
            raise InvalidRequest(
                f"header {LENGTH_HEADER} must be 1 to {len(body)} (the body's length),"
                f" was {shown(header_length)}"
            )
    return parse_object(body[:length]), memoryview(body)[length:]


MAX_JSON_COMMAS = 4 * 1024**2
"""Parsing holds Python's lock, 29 ns a value: 0.12 s for these, 0.93 s for 64 MiB of them."""


def check_values(body: bytes) -> None:
    """Raise BodyTooLarge for JSON of too many values."""
    commas = body.count(b",") if len(body) > MAX_JSON_COMMAS else 0
    if commas > MAX_JSON_COMMAS:
        raise BodyTooLarge(
            f"the JSON of a body may have {MAX_JSON_COMMAS} commas, has {commas}: send large"
            " tensors in binary (extension binary_tensor_data)"
        )


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object; raises InvalidRequest, BodyTooLarge."""
    check_values(body)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {json_fault(error)}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body must be a JSON object, was {kind_of(document)}")
    return document


def _parameters(holder: dict[str, Any], path: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"{path}: 'parameters' must be an object")
    return parameters


def _flag(parameters: dict[str, Any], name: str, path: str) -> bool | None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(
            f"{path}: parameter {name!r} must be true or false, was {shown(value)}"
        )
    return value


def _parse_outputs(outputs: Any, *, is_binary: bool) -> tuple[RequestedOutput, ...]:
    if outputs is None:
        return ()
    if not isinstance(outputs, list):
        raise InvalidRequest(f"'outputs' must be an array, was {kind_of(outputs)}")
    requested = []
    for index, entry in enumerate(outputs):
        path = f"outputs[{index}]"
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise InvalidRequest(f"{path} must be an object with a string 'name'")
        own = _flag(_parameters(entry, path), "binary_data", path)
        requested.append(RequestedOutput(name, is_binary if own is None else own))
    check_unique_names([each.name for each in requested], "'outputs'")
    return tuple(requested)


def _read_entries(entries: list[Any], tail: memoryview, where: str) -> Iterator[TensorEntry]:
    for index, entry in enumerate(entries):
        path = f"{where}[{index}]"
        if not isinstance(entry, dict):
            raise InvalidRequest(f"{path} must be an object, was {kind_of(entry)}")
        spec = parse_tensor_spec(entry.get("name"), entry.get("datatype"), entry.get("shape"), path)
        reference = parse_reference(_parameters(entry, path), path)
        size = _binary_size(entry, tail, path)
        if reference is not None:
            yield TensorEntry(spec, reference=reference)
        elif size is None:
            yield TensorEntry(spec, data=entry.get("data"))
        else:
            yield TensorEntry(spec, raw=tail[:size])
            tail = tail[size:]
    if len(tail):
        raise InvalidRequest(f"{len(tail)} bytes are left after the last binary tensor")


def _decode_tensors(
    entries: Iterator[TensorEntry], where: str, kept: KeptTensors | None = None
) -> tuple[Tensor, ...]:
    tensors = []
    for entry in entries:
        spec = entry.spec
        if entry.reference is not None:
            tensors.append(_referenced(entry.reference, spec, kept))
        elif entry.raw is not None:
            tensors.append(from_raw(entry.raw, spec))
        elif spec.datatype in RAW_ONLY:
            raise InvalidRequest(f"{spec.path}: {spec.datatype} can only be sent in binary")
        else:
            tensors.append(from_json(entry.data, spec))
    check_unique_names([tensor.name for tensor in tensors], where)
    return tuple(tensors)


def _referenced(reference: TensorReference, spec: TensorSpec, kept: KeptTensors | None) -> Tensor:
    """The kept tensor under the input's name, without a copy."""
    tensor = (kept or {}).get(reference.identity)
    if tensor is None:
        raise InvalidRequest(f"{spec.path}: references to tensors are for steps of workflows")
    if (tensor.datatype, tensor.shape) != (spec.datatype, spec.shape):
        raise InvalidRequest(
            f"{spec.path}: the tensor is {tensor.datatype} of shape {list(tensor.shape)}, not"
            f" {spec.datatype} of shape {list(spec.shape)}"
        )
    return tensor.renamed(spec.name)


def _binary_size(entry: dict[str, Any], tail: memoryview, path: str) -> int | None:
    """Bytes of a tensor in the binary tail; None if its data is JSON."""
    size = _parameters(entry, path).get(BINARY_SIZE)
    if size is None:
        return None
    if type(size) is not int or not 0 <= size <= len(tail):
        raise InvalidRequest(
            f"{path}: {BINARY_SIZE} must be at most the {len(tail)} remaining bytes,"
            f" was {shown(size)}"
        )
    if entry.get("data") is not None:
        raise InvalidRequest(f"{path}: 'data' and {BINARY_SIZE} exclude each other")
    return size


def _encode_tensors(
    selected: Sequence[tuple[Tensor, bool]], kept: Mapping[str, TensorReference] | None = None
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """JSON entries of tensors, and the buffers of those that are sent in binary."""
    entries, buffers = [], []
    for tensor, is_binary in selected:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "datatype": tensor.datatype,
        }
        reference = (kept or {}).get(tensor.name)
        if reference is not None:
            entry["parameters"] = reference.as_parameters()
            entries.append(entry)
            continue
        data = None if is_binary else to_json(tensor)
        if data is None:
            buffer = to_raw(tensor)
            entry["parameters"] = {BINARY_SIZE: len(buffer)}
            buffers.append(buffer)
        else:
            entry["data"] = data
        entries.append(entry)
    return entries, buffers


def _encode_body(document: dict[str, Any], buffers: Sequence[bytes]) -> EncodedBody:
    text = orjson.dumps(document)
    if not buffers:
        return EncodedBody(text, (("content-type", "application/json"),))
    headers = (("content-type", BINARY_TYPE), (LENGTH_HEADER, str(len(text))))
    return EncodedBody(b"".join([text, *buffers]), headers)
