"""Image classification: the most likely label of each image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image

from registry.shown_value import kind_of
from runtime.errors import InvalidRequest, ModelInvalid
from runtime.tasks.classification import LabelOutputs
from runtime.tasks.encoded_image import EncodedImage, open_images
from runtime.tasks.tensor_batching import PaddedBatching, TensorRule
from runtime.wire.tensors import BYTES, Tensor, check_item_count, numeric_tensor, single_input

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt
    from transformers import PretrainedConfig, PreTrainedModel

V1_SHAPE = "an object such as {'image_bytes': {'b64': '...'}}"
MAX_SIDE: Final = 2048
"""Of the network's input, which preprocessor_config.json names: twice the largest usual one."""
MAX_INPUT_PIXELS: Final = 64_000_000
"""Of a request's inputs to the network, which take 768 MB: 1,024 images of 224 x 224 are fewer."""


class ImageClassification(LabelOutputs):
    platform = "transformers"
    waits_for_sandbox = False

    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        from transformers import ViTImageProcessorPil

        super().__init__(config)
        try:
            self._processor = ViTImageProcessorPil.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # a missing or invalid preprocessor_config.json
            raise ModelInvalid(f"the model's image processor cannot be used: {error}") from error
        height, width = _input_size(self._processor)
        self._input_pixels = height * width
        rule = TensorRule("FP32", trailing_shape=(3, height, width))
        self.batching = PaddedBatching({"pixel_values": rule}, required=("pixel_values",))

    def read_instances(self, instances: Sequence[Any]) -> list[EncodedImage]:
        """Images from objects that each hold an encoded image in base64."""
        check_item_count(len(instances))
        texts = []
        for index, instance in enumerate(instances):
            holder = instance.get("image_bytes") if isinstance(instance, dict) else None
            text = holder.get("b64") if isinstance(holder, dict) else None
            if not isinstance(text, str):
                raise InvalidRequest(
                    f"instances[{index}] must be {V1_SHAPE}, was {kind_of(instance)}"
                )
            texts.append((text.encode(), f"instances[{index}]"))
        return open_images(texts)

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[EncodedImage | Image.Image]:
        """Images from base64 strings of encoded images, or from pixels [n, height, width, 3]."""
        tensor = single_input(tensors, "image")
        if tensor.datatype == BYTES:
            check_item_count(tensor.data.size)
            return open_images(
                [
                    (value, f"input {tensor.name!r}[{index}]")
                    for index, value in enumerate(tensor.data.ravel())
                ]
            )
        shape = tensor.shape
        if tensor.datatype != "UINT8" or len(shape) != 4 or shape[3] != 3 or 0 in shape:
            raise InvalidRequest(
                f"input {tensor.name!r} must be BYTES [n] or UINT8 [n, height, width, 3],"
                f" was {tensor.datatype} {list(shape)}"
            )
        check_item_count(shape[0])
        return [Image.fromarray(pixels) for pixels in tensor.data]

    def preprocess(self, items: Sequence[EncodedImage | Image.Image]) -> tuple[Tensor, ...]:
        """Pixels, resized and normalised, of one image after the other."""
        if len(items) * self._input_pixels > MAX_INPUT_PIXELS:
            raise InvalidRequest(
                f"up to {max(1, MAX_INPUT_PIXELS // self._input_pixels)} images of this model may"
                f" be in one request, was {len(items)}"
            )
        array = np.ascontiguousarray(np.stack([self._pixels(item) for item in items]), np.float32)
        return (numeric_tensor("pixel_values", array),)

    def _pixels(self, item: EncodedImage | Image.Image) -> npt.NDArray[Any]:
        image = item.decode() if isinstance(item, EncodedImage) else item
        pixels: npt.NDArray[Any] = self._processor(images=[image], return_tensors="np")[
            "pixel_values"
        ][0]
        return pixels

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess([Image.new("RGB", (16, 16))]))

    def input_types(self) -> list[dict[str, Any]]:
        return [{"name": "image", "datatype": BYTES, "shape": [-1]}]


def _input_size(processor: Any) -> tuple[int, int]:
    """Height and width of the network's input. Raises ModelInvalid.

    Checks what the processor crops or pads to as well: images are made as large before any check.
    """
    height, width = _side_lengths("size", processor.size)
    for name in ("crop_size", "pad_size"):
        if getattr(processor, name, None) is not None:
            _side_lengths(name, getattr(processor, name))
    return height, width


def _side_lengths(name: str, size: Any) -> tuple[int, int]:
    height, width = (getattr(size, side, None) for side in ("height", "width"))
    if not all(type(each) is int and 1 <= each <= MAX_SIDE for each in (height, width)):
        raise ModelInvalid(
            f"{name} in preprocessor_config.json must have a height and a width of 1 to {MAX_SIDE}"
            f" pixels, was {str(size)[:200]}"
        )
    return int(height or 0), int(width or 0)
