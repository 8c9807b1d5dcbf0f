"""First part of the demo: a request to each sample model in every way that KServe offers.

V1 and V2; by path, by path with namespace, and by Host header.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from pilotlight.demo.runs import TimedResponse
from pilotlight.demo.scenarios import SENTENCE
from pilotlight.demo.session import LiveSession, gather_requests

SENTENCES = (
    "A cat is sleeping on the sofa.",
    "A kitten naps on the couch.",
    "The stock market fell sharply today.",
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One request, and the part of its response to print."""

    how: str
    shown: str
    response: TimedResponse


async def invoke_samples(session: LiveSession) -> list[Invocation]:
    # All three models are cold: load them at the same time.
    by_model = await gather_requests(_embed(session), _translate(session), _classify(session))
    return [invocation for each in by_model for invocation in each]


async def _embed(session: LiveSession) -> list[Invocation]:
    v1 = await session.request("/v1/models/embed:predict", {"instances": list(SENTENCES)})
    v2 = await session.request("/v2/models/embed/infer", _text_v2(SENTENCES[:2]))
    return [
        Invocation("embed: V1, by path", similarities(v1.body["predictions"]), v1),
        Invocation("embed: V2, by path", _shape(v2.body, "embedding"), v2),
    ]


async def _translate(session: LiveSession) -> list[Invocation]:
    v1 = await session.request(
        "/serving/default/translate/v1/models/translate:predict", {"instances": [SENTENCE]}
    )
    v2 = await session.request(
        "/v2/models/translate/infer",
        _text_v2([SENTENCE]),
        {"host": "translate.default.example.com"},
    )
    return [
        Invocation("translate: V1, by namespace", _shorten(v1.body["predictions"][0]), v1),
        Invocation(
            "translate: V2, by Host header", _shorten(_output(v2.body, "text")["data"][0]), v2
        ),
    ]


async def _classify(session: LiveSession) -> list[Invocation]:
    image = _image()
    v1 = await session.request(
        "/v1/models/classify-image:predict",
        {"instances": [{"image_bytes": {"b64": image}}]},
        {"host": "classify-image.default.example.com"},
    )
    v2 = await session.request(
        "/serving/default/classify-image/v2/models/classify-image/infer",
        {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [image]}]},
    )
    label = str(_output(v2.body, "label")["data"][0])
    return [
        Invocation("classify-image: V1, by Host header", _label(v1.body["predictions"][0]), v1),
        Invocation("classify-image: V2, by namespace", label, v2),
    ]


def similarities(vectors: Sequence[Sequence[float]]) -> str:
    """Cosine similarities of the first sentence; the vectors have length one."""
    matrix = np.asarray(vectors, dtype=np.float64)
    products = matrix @ matrix[0]
    others = ", ".join(f"{value:.2f}" for value in products[1:])
    return f"similarity of sentence 1 with the others: {others}"


def _text_v2(texts: Sequence[str]) -> dict[str, Any]:
    data = list(texts)
    return {"inputs": [{"name": "text", "shape": [len(data)], "datatype": "BYTES", "data": data}]}


def _output(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(each for each in body["outputs"] if each["name"] == name)
    return found


def _shape(body: Mapping[str, Any], name: str) -> str:
    tensor = _output(body, name)
    return f"{tensor['datatype']} {tensor['shape']} of model {body['model_name']}"


def _label(prediction: Mapping[str, Any]) -> str:
    return f"{prediction['label']} ({prediction['score']:.3f})"


def _shorten(text: str) -> str:
    return text if len(text) <= 48 else text[:47] + "…"


def _image() -> str:
    """A small PNG file in base64."""
    rows = np.linspace(0, 255, 96, dtype=np.uint8)
    pixels = np.stack(
        [np.tile(rows, (96, 1)), np.tile(rows[:, None], (1, 96)), np.full((96, 96), 128, np.uint8)],
        axis=-1,
    )
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()
