"""Image classification: the most likely label of each image.

A few kilobytes can decode to gigabytes: images are refused by the sizes in their headers before
any is decoded, one at a time.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    BYTES,
    Tensor,
    check_item_count,
    numeric_tensor,
    single_input,
)
from common.shown_value import kind_of
from registry.domain.model import OWN, TaskOptions
from runtime.errors import ModelInvalid
from runtime.tasks.classification import LabelOutputs
from runtime.tasks.task import PaddedBatching, TensorRule

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PretrainedConfig, PreTrainedModel


MAX_PIXELS: Final = 50_000_000
"""Of one image, which is decoded to up to 8 bytes per pixel."""
MAX_REQUEST_PIXELS: Final = 200_000_000
"""Of all images of a request, which takes seconds to decode."""
_HUGE_PIXELS: Final = 16_000_000
"""Larger images are halved first: the model's own resizing needs 15 bytes a pixel."""
FORMATS: Final = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""Pillow's decoders that are used: the others are rarely needed, and some start programs."""
V1_SHAPE = "an object such as {'image_bytes': {'b64': '...'}}"
MAX_SIDE: Final = 2048
"""Of the network's input, which preprocessor_config.json names: twice the largest usual one."""
MAX_ASPECT_RATIO: Final = 100
"""Processors may scale the shorter side to `MAX_SIDE`, and the longer one with it."""
_TRIAL_SIZES: Final = ((96, 64), (64, 96))
MAX_INPUT_PIXELS: Final = 64_000_000
"""Of a request's inputs to the network, which take 768 MB: 1,024 images of 224 x 224 are fewer."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    content: bytes
    where: str
    """Its place in the request, for error messages."""

    def pixels(self) -> int:
        """Width times height by the header. Raises InvalidRequest."""
        width, height = self._open().size
        if width * height > MAX_PIXELS:
            raise InvalidRequest(
                f"{self.where} has {width} x {height} pixels, {MAX_PIXELS} are allowed"
            )
        return width * height

    def decode(self) -> Image.Image:
        """The image as it is viewed, a huge one at half its size. Raises InvalidRequest.

        Turned by its EXIF orientation, then RGB, as by `load_image` of transformers.
        """
        try:
            opened = self._open()
            opened.load()
            _turn(opened)
            image = opened.convert("RGB")
            is_huge = image.width * image.height > _HUGE_PIXELS
            return image.reduce(2) if is_huge else image
        except (OSError, ValueError, SyntaxError) as error:
            raise InvalidRequest(f"{self.where} cannot be decoded: {error}") from error

    def _open(self) -> Image.Image:
        try:
            return Image.open(io.BytesIO(self.content), formats=FORMATS)
        except UnidentifiedImageError as error:
            allowed = ", ".join(FORMATS)
            raise InvalidRequest(
                f"{self.where} is not an image that can be read; formats are {allowed}"
            ) from error
        except Image.DecompressionBombError as error:
            raise InvalidRequest(
                f"{self.where} has too many pixels, {MAX_PIXELS} are allowed"
            ) from error
        except (OSError, ValueError, SyntaxError) as error:
            raise InvalidRequest(
                f"{self.where} is not an image that can be read: {error}"
            ) from error


def _turn(image: Image.Image) -> None:
    """Turn an image by its EXIF orientation; one that cannot be read says nothing."""
    with contextlib.suppress(struct.error, SyntaxError, LookupError, TypeError, ValueError):
        ImageOps.exif_transpose(image, in_place=True)


def open_images(texts: Sequence[tuple[bytes, str]]) -> list[EncodedImage]:
    """Images from base64 with their places, within the pixel limits. Raises InvalidRequest."""
    images, total = [], 0
    for text, where in texts:
        try:
            image = EncodedImage(base64.b64decode(text, validate=True), where)
        except binascii.Error as error:
            raise InvalidRequest(f"{where} must be base64 of an encoded image: {error}") from error
        total += image.pixels()
        if total > MAX_REQUEST_PIXELS:
            raise InvalidRequest(
                f"the images of a request may have {MAX_REQUEST_PIXELS} pixels together; up to"
                f" {where} they have {total}"
            )
        images.append(image)
    return images


class ImageClassification(LabelOutputs):
    platform = "transformers"

    def __init__(self, folder: Path, config: PretrainedConfig, options: TaskOptions = OWN) -> None:
        super().__init__(config, options)
        self._processor = _read_processor(folder)
        height, width = self._input_size()
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

    def _input_size(self) -> tuple[int, int]:
        """Height and width of the network's input, which no image's own shape may change.

        Raises ModelInvalid.
        """
        shapes = []
        for size in _TRIAL_SIZES:
            try:
                shapes.append(self._pixels(Image.new("RGB", size)).shape)
            except Exception as error:  # processors fail in different ways
                raise ModelInvalid(
                    f"preprocessor_config.json: an image of {size[0]} x {size[1]} pixels cannot be"
                    f" prepared: {error}"
                ) from error
        shape = shapes[0]
        if shapes[0] != shapes[1] or len(shape) != 3 or shape[0] != 3:
            raise ModelInvalid(
                f"{type(self._processor).__name__} makes arrays of the shapes"
                f" {[list(each) for each in shapes]} of images of {_TRIAL_SIZES} pixels; all images"
                " must become [3, height, width] of one size, so that they can be batched"
            )
        return shape[1], shape[2]

    def _pixels(self, item: EncodedImage | Image.Image) -> npt.NDArray[Any]:
        image = item.decode() if isinstance(item, EncodedImage) else item
        shorter, longer = sorted(image.size)
        if longer > shorter * MAX_ASPECT_RATIO:
            raise InvalidRequest(
                f"an image's longer side may be up to {MAX_ASPECT_RATIO} times its shorter one,"
                f" was {image.width} x {image.height} pixels"
            )
        pixels: npt.NDArray[Any] = self._processor(images=[image], return_tensors="np")[
            "pixel_values"
        ][0]
        return pixels

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess([Image.new("RGB", (16, 16))]))

    def input_types(self) -> list[dict[str, Any]]:
        return [{"name": "image", "datatype": BYTES, "shape": [-1]}]


def _read_processor(folder: Path) -> Any:
    """The image processor that the model's files name. Raises ModelInvalid."""
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except Exception as error:  # a missing or invalid preprocessor_config.json
        text = str(error)[:300]
        raise ModelInvalid(f"the model's image processor cannot be used: {text}") from error
    for name in ("size", "crop_size", "pad_size"):
        _check_sides(name, getattr(processor, name, None))
    return processor


def _check_sides(name: str, size: Any) -> None:
    """Images are made as large as the file says before any other check. Raises ModelInvalid."""
    if size is None:
        return
    sides = {key: value for key, value in dict(size).items() if value is not None}
    if not sides or not all(
        type(value) is int and 1 <= value <= MAX_SIDE for value in sides.values()
    ):
        raise ModelInvalid(
            f"{name} in preprocessor_config.json must have sides of 1 to {MAX_SIDE} pixels, was"
            f" {str(size)[:200]}"
        )
