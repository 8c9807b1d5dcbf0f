"""Image classification: the likeliest label of each image."""

from __future__ import annotations

import base64
import binascii
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from runtime.device.tensor_batching import PaddedBatching, TensorRule
from runtime.errors import InvalidRequest, ModelInvalid
from runtime.tasks.labels import LABEL_OUTPUTS, Labels, label_predictions
from runtime.tasks.text import torch_inputs
from runtime.wire.tensors import BYTES, Tensor, check_item_count, numeric_tensor, single_input

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

MOST_PIXELS = 50_000_000
"""A small file can claim a huge picture; larger ones are refused before they are unpacked."""
V1_SHAPE = "an object such as {'image_bytes': {'b64': '...'}}"


class ImageClassification:
    """Images to labels."""

    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        from transformers import ViTImageProcessorPil

        try:
            self._processor = ViTImageProcessorPil.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # a missing or odd preprocessor_config.json
            raise ModelInvalid(f"the model's image processor cannot be used: {error}") from error
        self._labels = Labels(config)
        self.batching = self._batching()

    def _batching(self) -> PaddedBatching:
        """All pictures have the size that the processor makes them."""
        size = self._processor.size
        rule = TensorRule("FP32", trailing=(3, size["height"], size["width"]))
        return PaddedBatching({"pixel_values": rule}, needed=("pixel_values",))

    def read_instances(self, instances: Sequence[Any]) -> list[Image.Image]:
        """Encoded images in base64."""
        check_item_count(len(instances))
        images = []
        for index, instance in enumerate(instances):
            holder = instance.get("image_bytes") if isinstance(instance, dict) else None
            text = holder.get("b64") if isinstance(holder, dict) else None
            if not isinstance(text, str):
                raise InvalidRequest(
                    f"instances[{index}] must be {V1_SHAPE}, was {type(instance).__name__}"
                )
            images.append(_decoded(text.encode(), f"instances[{index}]"))
        return images

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[Image.Image]:
        """Base64 strings of encoded images, or pixels [n, height, width, 3]."""
        tensor = single_input(tensors, "image")
        if tensor.datatype == BYTES:
            check_item_count(tensor.data.size)
            return [
                _decoded(value, f"input {tensor.name!r}[{index}]")
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
        """Pixels as the network wants them, resized and normalised."""
        pixels = self._processor(images=list(items), return_tensors="np")["pixel_values"]
        array = np.ascontiguousarray(np.stack(list(pixels)), dtype=np.float32)
        return (numeric_tensor("pixel_values", array),)

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Scores per class."""
        logits = network(**torch_inputs(inputs, network, needed="pixel_values")).logits
        return (numeric_tensor("logits", logits.float().cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The best label and its probability."""
        return self._labels.best(outputs[0])

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One object per image."""
        return label_predictions(outputs)

    def warm_up(self, network: PreTrainedModel) -> None:
        """A black picture."""
        self.infer(network, self.preprocess([Image.new("RGB", (16, 16))]))

    def input_types(self) -> list[dict[str, Any]]:
        """One encoded image per item."""
        return [{"name": "image", "datatype": BYTES, "shape": [-1]}]

    def output_types(self) -> list[dict[str, Any]]:
        """A label and a score per item."""
        return LABEL_OUTPUTS


def _decoded(text: bytes, where: str) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(base64.b64decode(text, validate=True)))
        if image.width * image.height > MOST_PIXELS:
            raise InvalidRequest(
                f"{where} has {image.width} x {image.height} pixels, {MOST_PIXELS} are allowed"
            )
        return image.convert("RGB")
    except binascii.Error as error:
        raise InvalidRequest(f"{where} must be base64 of an encoded image: {error}") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise InvalidRequest(f"{where} is not an image that can be read: {error}") from error
    except Image.DecompressionBombError as error:
        raise InvalidRequest(f"{where} unpacks to too many pixels") from error
