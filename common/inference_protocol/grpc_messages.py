"""V2's gRPC messages: tensors from them and to them, and the class of each.

The classes are made of `open_inference.proto`, so that a gateway needs nothing of KServe's package,
whose import takes seconds and 180 MB. Raw contents are kept as buffers. A response is raw if its
request was, or if one of its datatypes can only be sent raw.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import RequestedOutput, V2Request, select_outputs
from common.inference_protocol.encodings import from_raw, string_array, to_raw
from common.inference_protocol.tensors import (
    BYTES,
    NUMBER_TYPES,
    NUMPY_OF,
    RAW_ONLY,
    Tensor,
    TensorSpec,
    check_unique_names,
    does_not_fit,
    parse_tensor_spec,
)

INFERENCE: Final = "inference.GRPCInferenceService"

CONTENTS_OF: Mapping[str, str] = {
    **{each.datatype: each.contents for each in NUMBER_TYPES if each.contents},
    BYTES: "bytes_contents",
}
"""The field of `InferTensorContents` that holds a datatype."""


POOL: Final = DescriptorPool()
"""Apart from protobuf's own pool, where KServe's package registers the same names."""


def message_classes(described: bytes) -> Any:
    """The classes of a compiled protocol, a FileDescriptorSet of one file, by name."""
    file = FileDescriptorSet.FromString(described).file[0]
    POOL.Add(file)
    kinds = POOL.FindFileByName(file.name).message_types_by_name
    return SimpleNamespace(**{name: GetMessageClass(kind) for name, kind in kinds.items()})


messages: Final = message_classes(files(__package__).joinpath("open_inference.binpb").read_bytes())


def parse_message(kind: Any, content: bytes) -> Any:
    """A message of class `kind`; raises InvalidRequest."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise InvalidRequest(f"the message is not a {kind.DESCRIPTOR.name}: {error}") from error


def decode_message(message: Any) -> V2Request:
    """The tensors of a `ModelInferRequest`; raises InvalidRequest."""
    raw = message.raw_input_contents
    if not message.inputs:
        raise InvalidRequest("'inputs' must hold one tensor or more")
    inputs = _decode_tensors(message.inputs, raw)
    check_unique_names([entry.name for entry in message.outputs], "'outputs'")
    return V2Request(
        inputs=inputs,
        id=message.id or None,
        is_binary=bool(raw),
        outputs=tuple(RequestedOutput(entry.name, bool(raw)) for entry in message.outputs),
    )


def _decode_tensors(entries: Sequence[Any], raw: Sequence[bytes]) -> tuple[Tensor, ...]:
    if raw and len(raw) != len(entries):
        raise InvalidRequest(
            f"raw_input_contents must have one entry for each of the {len(entries)} inputs,"
            f" has {len(raw)}"
        )
    tensors = tuple(
        _decode_tensor(entry, raw[index] if raw else None, f"inputs[{index}]")
        for index, entry in enumerate(entries)
    )
    check_unique_names([tensor.name for tensor in tensors], "'inputs'")
    return tensors


def _decode_tensor(entry: Any, raw: bytes | None, path: str) -> Tensor:
    spec = parse_tensor_spec(entry.name, entry.datatype, list(entry.shape), path)
    if raw is None:
        return _from_contents(entry.contents, spec)
    if entry.HasField("contents"):
        raise InvalidRequest(f"{path}: 'contents' and raw_input_contents exclude each other")
    return from_raw(memoryview(raw), spec)


def _from_contents(contents: Any, spec: TensorSpec) -> Tensor:
    if spec.datatype in RAW_ONLY:
        raise InvalidRequest(f"{spec.path}: {spec.datatype} can only be sent in raw_input_contents")
    field = CONTENTS_OF[spec.datatype]
    values = getattr(contents, field)
    if len(values) != spec.count:
        raise InvalidRequest(
            f"{spec.path}: shape {list(spec.shape)} needs {spec.count} elements in {field},"
            f" has {len(values)}"
        )
    if spec.datatype == BYTES:
        return Tensor(spec.name, BYTES, string_array(list(values), spec))
    try:
        array = np.fromiter(values, NUMPY_OF[spec.datatype], len(values))
    except (ValueError, OverflowError) as error:
        raise does_not_fit(values, field, spec) from error
    return Tensor(spec.name, spec.datatype, array.reshape(spec.shape))


def encode_message(tensors: Sequence[Tensor], *, model_name: str, request: V2Request) -> bytes:
    """A serialised `ModelInferResponse`; raises InvalidRequest."""
    selected = [tensor for tensor, _ in select_outputs(tensors, request)]
    is_raw = request.is_binary or any(tensor.datatype in RAW_ONLY for tensor in selected)
    response = messages.ModelInferResponse(model_name=model_name, id=request.id or "")
    for tensor in selected:
        entry = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if is_raw:
            response.raw_output_contents.append(to_raw(tensor))
        else:
            getattr(entry.contents, CONTENTS_OF[tensor.datatype]).extend(
                tensor.data.ravel().tolist()
            )
    content: bytes = response.SerializeToString()
    return content
