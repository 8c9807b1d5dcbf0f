"""Sizes that a model's preprocessor_config.json may name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from runtime.errors import InvalidRequest, ModelInvalid
from runtime.tasks import image_classification
from runtime.tasks.image_classification import MAX_SIDE, ImageClassification

if TYPE_CHECKING:
    from pathlib import Path


def task(folder: Path, **fields: Any) -> ImageClassification:
    from transformers import ViTConfig

    document = {"image_processor_type": "ViTImageProcessor", **fields}
    (folder / "preprocessor_config.json").write_text(json.dumps(document))
    return ImageClassification(folder, ViTConfig(num_labels=2))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"size": 10**9}, id="huge"),
        pytest.param({"size": {"height": MAX_SIDE + 1, "width": 8}}, id="just-too-high"),
        pytest.param({"size": {"height": 0, "width": 8}}, id="zero"),
        pytest.param({"size": {"shortest_edge": 8}}, id="without-a-width"),
        pytest.param({"size": 8, "do_center_crop": True, "crop_size": 10**6}, id="crop"),
    ],
)
def test_sizes_out_of_bounds_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(ModelInvalid, match=f"1 to {MAX_SIDE} pixels"):
        task(tmp_path, **fields)


def test_the_inputs_of_a_request_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_classification, "MAX_INPUT_PIXELS", 2 * 32 * 32)
    made = task(tmp_path, size=32)
    images = [Image.new("RGB", (4, 4))] * 3
    assert made.preprocess(images[:2])[0].shape == (2, 3, 32, 32)
    with pytest.raises(InvalidRequest, match="up to 2 images"):
        made.preprocess(images)
