"""Hostile gRPC calls to a pod."""

import struct
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from common.inference_protocol.grpc_messages import messages
from tests.hostile.heads import HEADER_NAMES, MODELS
from tests.hostile.inference_requests import PICTURES
from tests.hostile.mutations import ODD_BYTES, ODD_NUMBERS, damaged


@dataclass(frozen=True)
class GrpcCall:
    method: str
    content: bytes
    metadata: tuple[tuple[str, str], ...] = ()


_METHODS: Final = (
    "ModelInfer", "ModelInfer", "ModelInfer", "ModelReady", "ModelMetadata", "ServerLive",
    "ServerMetadata", "Unknown",
)  # fmt: skip


def _infer_messages() -> tuple[bytes, ...]:
    text = messages.ModelInferRequest(model_name="text", id="1")
    entry = text.inputs.add(name="text", datatype="BYTES", shape=[2])
    entry.contents.bytes_contents.extend([b"fox", b"dog"])
    raw = messages.ModelInferRequest(model_name="rows", model_version="")
    raw.inputs.add(name="features", datatype="FP32", shape=[1, 4])
    raw.raw_input_contents.append(struct.pack("<4f", 1, 2, 3, 4))
    floats = messages.ModelInferRequest(model_name="rows")
    entry = floats.inputs.add(name="features", datatype="FP32", shape=[1, 4])
    entry.contents.fp32_contents.extend([1, 2, 3, 4])
    entry.parameters["content_type"].string_param = "x"
    picture = messages.ModelInferRequest(model_name="image")
    picture.inputs.add(name="image", datatype="BYTES", shape=[1])
    content = PICTURES[0]
    picture.raw_input_contents.append(struct.pack("<I", len(content)) + content)
    return tuple(each.SerializeToString() for each in (text, raw, floats, picture))


INFER_MESSAGES: Final = _infer_messages()


@st.composite
def _odd_tensors(draw: DrawFn) -> bytes:
    """A valid message with numbers and names that are not."""
    request = messages.ModelInferRequest(model_name=draw(st.sampled_from([*MODELS, "", "x"])))
    whole = [number for number in ODD_NUMBERS if isinstance(number, int) and abs(number) < 2**63]
    for _ in range(draw(st.integers(0, 3))):
        tensor = request.inputs.add(
            name=draw(st.sampled_from(["text", "features", "image", "", "é"])),
            datatype=draw(
                st.sampled_from(["BYTES", "FP32", "FP16", "BF16", "INT64", "BOOL", "", "X"])
            ),
            shape=draw(st.lists(st.sampled_from(whole), max_size=4)),
        )
        if draw(st.booleans()):
            tensor.contents.fp32_contents.extend(draw(st.lists(st.floats(width=32), max_size=5)))
        if draw(st.booleans()):
            tensor.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=4), max_size=3)))
        if draw(st.booleans()):
            request.raw_input_contents.append(
                draw(st.binary(max_size=20) | st.sampled_from(ODD_BYTES))
            )
    content: bytes = request.SerializeToString()
    return content


@st.composite
def grpc_calls(draw: DrawFn) -> GrpcCall:
    content = draw(
        damaged(st.sampled_from(INFER_MESSAGES)) | _odd_tensors() | st.binary(max_size=40)
    )
    names = [name for name in HEADER_NAMES if name.startswith("x") and name != "x"]
    texts = st.sampled_from(["", "0", "-1", "nan", "1e999", "x", "127.0.0.1:1", "infer", "9" * 30])
    metadata = draw(st.lists(st.tuples(st.sampled_from(names), texts), max_size=2))
    return GrpcCall(draw(st.sampled_from(_METHODS)), content, tuple(metadata))
