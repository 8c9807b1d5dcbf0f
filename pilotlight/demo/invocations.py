"""First part of the demo: the samples, asked in every way that a KServe user asks.

V1 and V2; by path, by path with namespace, and by Host header.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from pilotlight.demo.calls import call
from pilotlight.demo.scenarios import SENTENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

    from pilotlight.demo.calls import Answer

SENTENCES = (
    "A cat is sleeping on the sofa.",
    "A kitten naps on the couch.",
    "The stock market fell sharply today.",
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One request of the tour, and what it showed."""

    how: str
    shown: str
    answer: Answer


async def invoke_samples(client: httpx.AsyncClient) -> list[Invocation]:
    """Ask each sample model once per way."""
    picture = _picture()
    embedded = await call(client, "/v1/models/embed:predict", {"instances": list(SENTENCES)})
    embedded_v2 = await call(client, "/v2/models/embed/infer", _text_v2(SENTENCES[:2]))
    translated = await call(
        client,
        "/serving/default/translate/v1/models/translate:predict",
        {"instances": [SENTENCE]},
    )
    translated_by_host = await call(
        client,
        "/v2/models/translate/infer",
        _text_v2([SENTENCE]),
        {"host": "translate.default.example.com"},
    )
    classified = await call(
        client,
        "/v1/models/classify-image:predict",
        {"instances": [{"image_bytes": {"b64": picture}}]},
        {"host": "classify-image.default.example.com"},
    )
    classified_v2 = await call(
        client,
        "/serving/default/classify-image/v2/models/classify-image/infer",
        {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}]},
    )
    return [
        Invocation("embed: V1, by path", similarities(embedded.body["predictions"]), embedded),
        Invocation("embed: V2, by path", _shape(embedded_v2.body, "embedding"), embedded_v2),
        Invocation(
            "translate: V1, by namespace", _start(translated.body["predictions"][0]), translated
        ),
        Invocation(
            "translate: V2, by Host header",
            _start(_output(translated_by_host.body, "text")["data"][0]),
            translated_by_host,
        ),
        Invocation(
            "classify-image: V1, by Host header", _label(classified.body["predictions"][0]),
            classified,
        ),
        Invocation(
            "classify-image: V2, by namespace",
            str(_output(classified_v2.body, "label")["data"][0]),
            classified_v2,
        ),
    ]  # fmt: skip


def similarities(vectors: Sequence[Sequence[float]]) -> str:
    """Cosine similarity of the first sentence with the others; the vectors have length one."""
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


def _start(text: str) -> str:
    return text if len(text) <= 48 else text[:47] + "…"


def _picture() -> str:
    """A small picture, made here."""
    rows = np.linspace(0, 255, 96, dtype=np.uint8)
    pixels = np.stack([np.tile(rows, (96, 1)), np.tile(rows[:, None], (1, 96)),
                       np.full((96, 96), 128, np.uint8)], axis=-1)  # fmt: skip
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()
