"""Nearly valid inference requests of V1, V2 in JSON and binary, OpenAI's protocol, with images."""

import base64
import io
import struct
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from PIL import Image

from tests.hostile.heads import HEADERS, NAMES, POD_HEADERS, HttpRequest, is_plain, with_head
from tests.hostile.mutations import ODD_NUMBERS, damaged, json_bytes, mutated

V1_DOCUMENTS = st.sampled_from(
    [
        ("text", {"instances": ["quick brown fox", "lazy dog"]}),
        ("embedder", {"instances": [{"text": "quick"}], "parameters": {}}),
        ("t5", {"instances": [{"text": "fox", "task": "summarization"}]}),
        ("t5", {"instances": [{"text": "a", "source_lang": "en", "target_lang": "de"}]}),
        ("chat", {"instances": ["the"], "parameters": {"max_new_tokens": 2}}),
        ("rows", {"instances": [[0.5, 1.0, -1.0, 2.0], [1, 2, 3, 4]]}),
        ("image", {"instances": [{"image_bytes": {"b64": "iVBORw0KGgo="}}]}),
    ]
)
V2_DOCUMENTS = st.sampled_from(
    [
        (
            "text",
            {
                "id": "1",
                "inputs": [
                    {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["fox", "dog"]}
                ],
                "outputs": [{"name": "label", "parameters": {"binary_data": False}}],
            },
        ),
        (
            "embedder",
            {
                "inputs": [
                    {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [["fox"]]}
                ],
                "parameters": {"binary_data_output": True},
            },
        ),
        (
            "rows",
            {
                "inputs": [
                    {
                        "name": "features",
                        "datatype": "FP32",
                        "shape": [2, 4],
                        "data": [1, 2, 3, 4, 5, 6, 7, 8],
                    }
                ]
            },
        ),
        (
            "rows",
            {
                "inputs": [
                    {
                        "name": "features",
                        "datatype": "FP64",
                        "shape": [1, 4],
                        "data": [[1, 2, 3, 4]],
                    }
                ]
            },
        ),
        (
            "image",
            {
                "inputs": [
                    {
                        "name": "image",
                        "datatype": "BYTES",
                        "shape": [1],
                        "data": ["iVBORw0KGgo="],
                        "parameters": {"content_type": "base64"},
                    }
                ]
            },
        ),
        (
            "image",
            {
                "inputs": [
                    {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1, 2, 3]}
                ]
            },
        ),
    ]
)
V1_KEYS = ("instances", "text", "parameters", "image_bytes", "b64", "inputs", "task", "source_lang")
V2_KEYS = (
    "inputs", "outputs", "parameters", "binary_data_size", "binary_data", "data", "shape",
    "datatype", "name", "id", "contents", "binary_data_output",
)  # fmt: skip
OPENAI_DOCUMENTS = st.sampled_from(
    [
        ("completions", {"model": "chat", "prompt": "the", "max_tokens": 2}),
        ("completions", {"model": "chat", "prompt": [1, 2, 3], "max_tokens": 1, "n": 2, "seed": 1}),
        (
            "completions",
            {
                "model": "chat",
                "prompt": ["a"],
                "max_tokens": 2,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ),
        (
            "completions",
            {
                "model": "chat",
                "prompt": "a",
                "max_tokens": 2,
                "stop": ["x"],
                "temperature": 0.7,
                "top_p": 0.5,
                "presence_penalty": 1,
            },
        ),
        (
            "chat/completions",
            {
                "model": "chat",
                "max_tokens": 2,
                "messages": [
                    {"role": "system", "content": "x"},
                    {"role": "user", "content": "hello"},
                ],
            },
        ),
        (
            "chat/completions",
            {
                "model": "chat",
                "max_completion_tokens": 2,
                "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            },
        ),
        ("embeddings", {"model": "embedder", "input": ["fox", "dog"], "encoding_format": "base64"}),
        ("embeddings", {"model": "embedder", "input": "fox", "dimensions": 8}),
        ("images/generations", {"model": "image", "prompt": "x", "size": "64x64", "n": 1}),
    ]
)
OPENAI_KEYS = (
    "model", "prompt", "messages", "max_tokens", "stream", "n", "stop", "temperature", "logprobs",
    "tools", "tool_choice", "response_format", "logit_bias", "input", "role", "content", "user",
    "size", "seed", "echo", "functions",
)  # fmt: skip


@st.composite
def json_requests(draw: DrawFn, protocol: str) -> HttpRequest:
    table: dict[str, tuple[SearchStrategy[Any], tuple[str, ...]]] = {
        "v1": (V1_DOCUMENTS, V1_KEYS),
        "v2": (V2_DOCUMENTS, V2_KEYS),
        "openai": (OPENAI_DOCUMENTS, OPENAI_KEYS),
    }
    documents, keys = table[protocol]
    place, document = draw(documents)
    body = json_bytes(draw(mutated(st.just(document), keys)))
    if draw(st.integers(0, 7)) == 0:
        body = draw(damaged(st.just(body)))
    to_pod = draw(st.integers(0, 3)) == 0
    headers = draw(POD_HEADERS if to_pod else HEADERS)
    name = place if draw(st.integers(0, 5)) else draw(NAMES)
    prefix = "/serving/default/" + name if draw(st.integers(0, 5)) == 0 and not to_pod else ""
    pod_name = f"default~{name}" if to_pod else name
    path = {
        "v1": f"{prefix}/v1/models/{pod_name}:predict",
        "v2": f"{prefix}/v2/models/{pod_name}/infer",
        "openai": f"/openai/v1/{place}",
    }[protocol]
    content = with_head(b"POST", path, body, headers)
    return HttpRequest(content, is_plain(headers), to_pod)


@st.composite
def v2_binary(draw: DrawFn) -> HttpRequest:
    """V2 requests whose tensors follow the JSON as bytes."""
    values = [1.0, 2.0, 3.0, 4.0]
    kind = draw(st.sampled_from(["rows", "text"]))
    if kind == "rows":
        data = struct.pack("<4f", *values)
        tensor: dict[str, Any] = {"name": "features", "datatype": "FP32", "shape": [1, 4]}
    else:
        data = struct.pack("<I", 3) + b"fox"
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1]}
    size = draw(st.just(len(data)) | st.sampled_from(ODD_NUMBERS))
    tensor["parameters"] = {"binary_data_size": size}
    document = draw(mutated(st.just({"inputs": [tensor]}), V2_KEYS, most=2))
    head = json_bytes(document)
    data = draw(damaged(st.just(data)))
    length = draw(
        st.just(str(len(head)))
        | st.sampled_from([*map(str, ODD_NUMBERS), "", "x", str(len(head) + 1)])
    )
    to_pod = draw(st.booleans())
    headers = [
        (b"inference-header-content-length", length.encode()),
        (b"content-type", b"application/octet-stream"),
        *draw(POD_HEADERS if to_pod else HEADERS),
    ]
    path = f"/v2/models/{'default~' if to_pod else ''}{kind}/infer"
    return HttpRequest(with_head(b"POST", path, head + data, headers), is_plain(headers), to_pod)


def _picture(image_format: str, mode: str = "RGB", size: tuple[int, int] = (20, 10)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, image_format)
    return buffer.getvalue()


PICTURES: Final = (
    *(_picture(each) for each in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")),
    _picture("PNG", "1", (6000, 6000)), _picture("PNG", "P"), _picture("PNG", "LA"),
    _picture("PNG", "I;16"), _picture("TIFF", "F"), _picture("JPEG", "CMYK"),
    _picture("PNG", "L", (1, 20_000)), _picture("TGA"), _picture("PPM"), _picture("PCX"),
    _picture("ICO"),
)  # fmt: skip


@st.composite
def images(draw: DrawFn) -> HttpRequest:
    """Damaged image files; most headers say how large the image is in their first bytes."""
    content = draw(damaged(st.sampled_from(PICTURES)))
    text = base64.b64encode(content).decode()
    if draw(st.booleans()):
        document: dict[str, Any] = {"instances": [{"image_bytes": {"b64": text}}]}
        path = "/v1/models/image:predict"
    else:
        tensor: dict[str, Any] = {
            "name": "image",
            "datatype": "BYTES",
            "shape": [1],
            "data": [text],
        }
        if draw(st.booleans()):
            tensor["parameters"] = {"content_type": "base64"}
        document = {"inputs": [tensor]}
        path = "/v2/models/image/infer"
    return HttpRequest(with_head(b"POST", path, json_bytes(document), []), is_whole=True)
