"""Sizes that a model's preprocessor_config.json may name."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import numeric_tensor
from registry.domain.model import Scores, TaskOptions
from runtime.errors import ModelInvalid
from runtime.tasks import image_classification
from runtime.tasks.image_classification import MAX_SIDE, EncodedImage, ImageClassification

ORIENTATION = 0x0112


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
        pytest.param({"size": {"shortest_edge": MAX_SIDE + 1}}, id="shorter-side"),
        pytest.param({"size": {"shortest_edge": 8, "longest_edge": 10**6}}, id="longer-side"),
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


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            {
                "feature_extractor_type": "ConvNextFeatureExtractor",
                "size": {"shortest_edge": 40},
                "crop_pct": 0.875,
            },
            id="resnet",
        ),
        pytest.param(
            {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 32},
                "crop_size": {"height": 24, "width": 24},
            },
            id="clip",
        ),
        pytest.param(
            {
                "image_processor_type": "MobileViTImageProcessor",
                "do_flip_channel_order": True,
                "size": {"shortest_edge": 36},
                "crop_size": {"height": 32, "width": 32},
            },
            id="mobilevit-bgr",
        ),
        pytest.param(
            {"feature_extractor_type": "LevitFeatureExtractor", "size": 32}, id="levit-old-name"
        ),
    ],
)
def test_the_processor_that_the_files_name_prepares_images(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    from transformers import AutoImageProcessor

    made = task(tmp_path, **{"image_processor_type": None, **fields})
    noise = np.random.default_rng(0).integers(0, 255, (50, 90, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    found = made.preprocess([image])[0].data
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    right = processor(images=[image], return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(found, right)


def test_a_processor_whose_arrays_vary_in_size_is_refused(tmp_path: Path) -> None:
    fields = {"image_processor_type": "TextNetImageProcessor", "size": {"shortest_edge": 64}}
    with pytest.raises(ModelInvalid, match="TextNetImageProcessorPil makes arrays of the shapes"):
        task(tmp_path, **fields)


def test_a_very_long_image_is_refused(tmp_path: Path) -> None:
    made = task(
        tmp_path,
        image_processor_type="CLIPImageProcessor",
        size={"shortest_edge": 32},
        crop_size={"height": 24, "width": 24},
    )
    with pytest.raises(InvalidRequest, match="up to 100 times its shorter one, was 3000 x 2"):
        made.preprocess([Image.new("RGB", (3000, 2))])


def test_labels_that_do_not_exclude_each_other_have_scores_of_their_own(tmp_path: Path) -> None:
    from transformers import ViTConfig

    document = {"image_processor_type": "ViTImageProcessor", "size": 32}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(document))
    config = ViTConfig(num_labels=3, problem_type="multi_label_classification")
    made = ImageClassification(tmp_path, config, TaskOptions(scores=Scores.ALL))
    logits = numeric_tensor("logits", np.array([[2.0, -1.0, 3.0]], np.float32))
    (found,) = made.predictions(made.postprocess([logits]))
    assert [each["label"] for each in found] == ["LABEL_2", "LABEL_0", "LABEL_1"]
    sigmoids = [1 / (1 + np.exp(-each)) for each in (3.0, 2.0, -1.0)]
    assert [each["score"] for each in found] == pytest.approx(sigmoids, rel=1e-6)


def photo(orientation: int, form: str = "JPEG") -> bytes:
    """Four colours in the corners of a picture that is wider than high."""
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8, :16], pixels[:8, 16:], pixels[8:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, form, exif=exif)
    return content.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_as_by_transformers(orientation: int, form: str) -> None:
    content = photo(orientation, form)
    seen = EncodedImage(content, "image").decode()
    expected = load_image(base64.b64encode(content).decode())
    assert seen.size == expected.size == ((32, 16) if orientation < 5 else (16, 32))
    assert np.array_equal(np.asarray(seen), np.asarray(expected))


def test_a_photo_with_damaged_exif_is_seen_as_it_lies() -> None:
    content = bytearray(photo(6))
    begin = content.index(b"Exif\0\0") + 6
    content[begin : begin + 8] = b"\xff" * 8
    assert EncodedImage(bytes(content), "image").decode().size == (32, 16)
