"""Image classification: the most likely label of each image."""

from __future__ import annotations

import base64
import binascii
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from runtime.errors import InvalidRequest, ModelInvalid
from runtime.tasks.classification import LabelOutputs
from runtime.tasks.tensor_batching import PaddedBatching, TensorRule
from runtime.wire.tensors import BYTES, Tensor, check_item_count, numeric_tensor, single_input

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

MAX_PIXELS = 50_000_000
"""A small file can decode to a huge image; larger images are refused before decoding."""
V1_SHAPE = "an object such as {'image_bytes': {'b64': '...'}}"


class ImageClassification(LabelOutputs):
    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        from transformers import ViTImageProcessorPil

        super().__init__(config)
        try:
            self._processor = ViTImageProcessorPil.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # a missing or invalid preprocessor_config.json
            raise ModelInvalid(f"the model's image processor cannot be used: {error}") from error
        size = self._processor.size
        rule = TensorRule("FP32", trailing_shape=(3, size["height"], size["width"]))
        self.batching = PaddedBatching({"pixel_values": rule}, required=("pixel_values",))

    def read_instances(self, instances: Sequence[Any]) -> list[Image.Image]:
        """Images from objects that each hold an encoded image in base64."""
        check_item_count(len(instances))
        images = []
        for index, instance in enumerate(instances):
            holder = instance.get("image_bytes") if isinstance(instance, dict) else None
            text = holder.get("b64") if isinstance(holder, dict) else None
            if not isinstance(text, str):
                raise InvalidRequest(
                    f"instances[{index}] must be {V1_SHAPE}, was {type(instance).__name__}"
                )
            images.append(_decode(text.encode(), f"instances[{index}]"))
        return images

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[Image.Image]:
        """Images from base64 strings of encoded images, or from pixels [n, height, width, 3]."""
        tensor = single_input(tensors, "image")
        if tensor.datatype == BYTES:
            check_item_count(tensor.data.size)
            return [
                _decode(value, f"input {tensor.name!r}[{index}]")
                for index, value in enumerate(tensor.data.ravel())
            ]
        shape = tensor.shape
        if tensor.datatype != "UINT8" or len(shape) != 4 or shape[3] != 3 or 0 in shape:
            raise InvalidRequest(
                f"input {tensor.name!r} must be BYTES [n] or UINT8 [n, height, width, 3],"
                f" was {tensor.datatype} {list(shape)}"
            )
        check_item_count(shape[0])
        return [Image.fromarray(pixels) for pixels in tensor.data]

    def preprocess(self, items: Sequence[Image.Image]) -> tuple[Tensor, ...]:
        """Pixels, resized and normalised."""
        pixels = self._processor(images=list(items), return_tensors="np")["pixel_values"]
        array = np.ascontiguousarray(np.stack(list(pixels)), dtype=np.float32)
        return (numeric_tensor("pixel_values", array),)

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess([Image.new("RGB", (16, 16))]))

    def input_types(self) -> list[dict[str, Any]]:
        return [{"name": "image", "datatype": BYTES, "shape": [-1]}]


def _decode(text: bytes, where: str) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(base64.b64decode(text, validate=True)))
        if image.width * image.height > MAX_PIXELS:
            raise InvalidRequest(
                f"{where} has {image.width} x {image.height} pixels, {MAX_PIXELS} are allowed"
            )
        return image.convert("RGB")
    except binascii.Error as error:
        raise InvalidRequest(f"{where} must be base64 of an encoded image: {error}") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise InvalidRequest(f"{where} is not an image that can be read: {error}") from error
    except Image.DecompressionBombError as error:
        raise InvalidRequest(f"{where} has too many pixels") from error
