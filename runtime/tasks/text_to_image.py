"""Text to image: prompts to PNG images in base64. Imported when such a model is loaded."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    BYTES,
    Tensor,
    bytes_tensor,
    named_arrays,
    numeric_tensor,
)
from common.shown_value import shown
from registry.domain.model import Task
from runtime.engines.images import DiffusionJob, Pipeline, check_index, diffuse
from runtime.engines.networks.configuration import read_json
from runtime.errors import ModelInvalid
from runtime.tasks.task import Batching, Processor, texts_of
from runtime.tasks.tokenizer_files import load_tokenizer, unbounded_part

MAX_IMAGES = 16
MAX_STEPS = 200
MAX_SIDE = 2048
"""In pixels."""
MAX_SEED = 2**63 - 1
MAX_GUIDANCE = 100.0
DEFAULT_STEPS = 30
DEFAULT_GUIDANCE = 7.5
FIELDS = (
    "prompt", "negative_prompt", "seed", "num_inference_steps", "width", "height",
    "guidance_scale",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SideLimits:
    """The default side of an image, and the number that every side must be a multiple of."""

    default: int
    multiple: int

    def allow(self, side: int) -> bool:
        return self.multiple <= side <= MAX_SIDE and side % self.multiple == 0


@dataclass(frozen=True, slots=True)
class ImageRequest:
    prompt: str
    negative_prompt: str
    seed: int
    steps: int
    width: int
    height: int
    guidance: float


def parse_image_requests(
    instances: Sequence[Any], sides: SideLimits, *, where: str = "instances"
) -> list[ImageRequest]:
    """The images of a V1 body; `where` names its list in errors. Raises InvalidRequest."""
    if not 0 < len(instances) <= MAX_IMAGES:
        raise InvalidRequest(
            f"a request must ask for 1 to {MAX_IMAGES} images, asked for {len(instances)}"
        )
    images = [_parse(instance, f"{where}[{i}]", sides) for i, instance in enumerate(instances)]
    if len({(image.width, image.height) for image in images}) > 1:
        raise InvalidRequest("all images of a request must have one width and one height")
    return images


def instances_of(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    """A V2 body as V1 instances: each tensor has one value per image, or one for all images."""
    named = {tensor.name: tensor for tensor in tensors}
    prompts = named.get("prompt")
    if prompts is None or prompts.datatype != BYTES:
        raise InvalidRequest(f"inputs must hold a BYTES tensor 'prompt', were {sorted(named)[:8]}")
    count = prompts.data.size
    columns = {name: _column(tensor, count) for name, tensor in named.items()}
    return [{name: values[row] for name, values in columns.items()} for row in range(count)]


def _column(tensor: Tensor, count: int) -> list[Any]:
    is_text = tensor.datatype == BYTES
    values = texts_of(tensor) if is_text else tensor.data.ravel().tolist()
    if len(values) not in {1, count}:
        raise InvalidRequest(
            f"input {tensor.name!r} must have 1 value or {count}, one per prompt, has {len(values)}"
        )
    return values if len(values) == count else values * count


def _parse(instance: Any, path: str, sides: SideLimits) -> ImageRequest:
    if isinstance(instance, str):
        instance = {"prompt": instance}
    if not isinstance(instance, dict) or not isinstance(instance.get("prompt"), str):
        raise InvalidRequest(
            f"{path} must be an object with a string 'prompt', was {shown(instance)}"
        )
    if unknown := sorted(set(map(str, instance)) - set(FIELDS)):
        raise InvalidRequest(
            f"{path} has unknown fields {unknown[:5]}; allowed are {', '.join(FIELDS)}"
        )
    negative = instance.get("negative_prompt", "")
    if not isinstance(negative, str):
        raise InvalidRequest(f"{path}: 'negative_prompt' must be a string")
    return ImageRequest(
        prompt=instance["prompt"],
        negative_prompt=negative,
        seed=_parse_int(instance, "seed", path, default=0, low=0, high=MAX_SEED),
        steps=_parse_int(
            instance, "num_inference_steps", path, default=DEFAULT_STEPS, low=1, high=MAX_STEPS
        ),
        width=_parse_side(instance, "width", path, sides),
        height=_parse_side(instance, "height", path, sides),
        guidance=_parse_guidance(instance, path),
    )


def _parse_int(
    instance: Mapping[str, Any], name: str, path: str, *, default: int, low: int, high: int
) -> int:
    value = instance.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise InvalidRequest(
            f"{path}: {name!r} must be a whole number from {low} to {high}, was {shown(value)}"
        )
    return value


def _parse_side(instance: Mapping[str, Any], name: str, path: str, sides: SideLimits) -> int:
    value = _parse_int(
        instance, name, path, default=sides.default, low=sides.multiple, high=MAX_SIDE
    )
    if value % sides.multiple:
        raise InvalidRequest(
            f"{path}: {name!r} must be a multiple of {sides.multiple}, was {value}"
        )
    return value


def _parse_guidance(instance: Mapping[str, Any], path: str) -> float:
    value = instance.get("guidance_scale", DEFAULT_GUIDANCE)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= MAX_GUIDANCE:
        raise InvalidRequest(
            f"{path}: 'guidance_scale' must be a number from 0 to {MAX_GUIDANCE:g},"
            f" was {shown(value)}"
        )
    return float(value)


TENSORS = ("prompt_ids", "negative_ids", "seed", "steps", "width", "height", "guidance")


@dataclass(frozen=True)
class ImageBatching(Batching):
    """Validates the tensors of image requests; images are generated one by one, not in batches."""

    sides: SideLimits
    vocabulary_size: int
    max_tokens: int
    max_rows: int | None = 1

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        named = {tensor.name: tensor for tensor in inputs}
        if sorted(named) != sorted(TENSORS) or len(inputs) != len(TENSORS):
            raise InvalidRequest(f"inference needs {list(TENSORS)}, got {sorted(named)[:8]}")
        rows = named["seed"].data.size
        if not 0 < rows <= MAX_IMAGES:
            raise InvalidRequest(f"a request must ask for 1 to {MAX_IMAGES} images, was {rows}")
        step = self.sides.multiple
        for name, low, high in (
            ("prompt_ids", 0, self.vocabulary_size - 1),
            ("negative_ids", 0, self.vocabulary_size - 1),
            ("seed", 0, MAX_SEED),
            ("steps", 1, MAX_STEPS),
            ("width", step, MAX_SIDE),
            ("height", step, MAX_SIDE),
            ("guidance", 0, MAX_GUIDANCE),
        ):
            shape = (rows, self.max_tokens) if name.endswith("_ids") else (rows,)
            datatype = "FP32" if name == "guidance" else "INT64"
            tensor = named[name]
            if tensor.datatype != datatype or tensor.shape != shape:
                raise InvalidRequest(
                    f"tensor {name!r} must be {datatype} {list(shape)},"
                    f" was {tensor.datatype} {list(tensor.shape)}"
                )
            if not ((tensor.data >= low) & (tensor.data <= high)).all():
                raise InvalidRequest(f"tensor {name!r} must hold values from {low} to {high}")
        sizes = np.stack([named["width"].data, named["height"].data])
        if (sizes % step).any() or (sizes != sizes[:, :1]).any():
            raise InvalidRequest(f"images must have one size, multiples of {step}")
        return tuple(named[name] for name in TENSORS)

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        """Images of two steps."""
        ids = np.zeros((rows, self.max_tokens), np.int64)
        values = {"seed": 0, "steps": 2, "width": self.sides.default, "height": self.sides.default}
        return (
            numeric_tensor("prompt_ids", ids),
            numeric_tensor("negative_ids", ids),
            *(
                numeric_tensor(name, np.full(rows, value, np.int64))
                for name, value in values.items()
            ),
            numeric_tensor("guidance", np.full(rows, DEFAULT_GUIDANCE, np.float32)),
        )


WARM_UP_STEPS = 2
MAX_TOKENS = 77
"""CLIP's context, if the tokenizer sets no limit."""


class TextToImage(Processor):
    platform = "diffusers"

    def __init__(self, folder: Path, declared: Task | None) -> None:
        if declared not in {None, Task.TEXT_TO_IMAGE}:
            raise ModelInvalid(f"the model makes images, but task {declared.value!r} is declared")
        check_index(folder)
        _check_expressions(folder / "tokenizer" / "tokenizer.json")
        self._tokenizer = load_tokenizer(folder / "tokenizer")
        self._max_tokens = min(self._tokenizer.model_max_length, MAX_TOKENS)
        self._scale, self.sides = _sizes(folder)
        self.batching = ImageBatching(self.sides, len(self._tokenizer), self._max_tokens)

    def read_instances(self, instances: Sequence[Any]) -> list[ImageRequest]:
        return parse_image_requests(instances, self.sides)

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[ImageRequest]:
        """Tensors with the names of the V1 fields."""
        return parse_image_requests(instances_of(tensors), self.sides, where="images")

    def preprocess(self, items: Sequence[ImageRequest]) -> tuple[Tensor, ...]:
        """Tokens and parameters, a row for each image."""
        numbers = {
            "seed": [item.seed for item in items],
            "steps": [item.steps for item in items],
            "width": [item.width for item in items],
            "height": [item.height for item in items],
        }
        return (
            self._tokens("prompt_ids", [item.prompt for item in items]),
            self._tokens("negative_ids", [item.negative_prompt for item in items]),
            *(numeric_tensor(name, np.array(values, np.int64)) for name, values in numbers.items()),
            numeric_tensor("guidance", np.array([item.guidance for item in items], np.float32)),
        )

    def _tokens(self, name: str, texts: list[str]) -> Tensor:
        encoded = self._tokenizer(
            texts,
            padding="max_length",
            max_length=self._max_tokens,
            truncation=True,
            return_tensors="np",
        )
        return numeric_tensor(name, np.ascontiguousarray(encoded["input_ids"], dtype=np.int64))

    def steps(
        self, network: Pipeline, inputs: Sequence[Tensor]
    ) -> Generator[None, None, tuple[Tensor, ...]]:
        """The pixels of all images; yields between steps on the device."""
        arrays = named_arrays(inputs)
        images = []
        for row in range(len(arrays["seed"])):
            job = DiffusionJob(
                arrays["prompt_ids"][row : row + 1],
                arrays["negative_ids"][row : row + 1],
                seed=int(arrays["seed"][row]),
                steps=int(arrays["steps"][row]),
                width=int(arrays["width"][row]),
                height=int(arrays["height"][row]),
                guidance=float(arrays["guidance"][row]),
            )
            images.append((yield from diffuse(network, job, self._scale)))
        return (numeric_tensor("pixels", np.stack(images)),)

    def infer(self, network: Pipeline, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All steps at once."""
        steps = self.steps(network, inputs)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                outputs: tuple[Tensor, ...] = end.value
                return outputs

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (bytes_tensor("image", [_png(pixels) for pixels in outputs[0].data]),)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return [{"image": {"b64": image.decode()}} for image in outputs[0].data]

    def warm_up(self, network: Pipeline) -> None:
        side = self.sides.multiple * 2
        image = {"prompt": "warm", "num_inference_steps": WARM_UP_STEPS}
        requests = self.read_instances([{**image, "width": side, "height": side}])
        self.infer(network, self.preprocess(requests))

    def input_types(self) -> list[dict[str, Any]]:
        """All inputs but the prompt are optional."""
        numbers = ("seed", "num_inference_steps", "width", "height")
        return [
            {"name": "prompt", "datatype": BYTES, "shape": [-1]},
            {"name": "negative_prompt", "datatype": BYTES, "shape": [-1]},
            *({"name": name, "datatype": "INT64", "shape": [-1]} for name in numbers),
            {"name": "guidance_scale", "datatype": "FP32", "shape": [-1]},
        ]

    def output_types(self) -> list[dict[str, Any]]:
        return [{"name": "image", "datatype": BYTES, "shape": [-1]}]


def _check_expressions(file: Path) -> None:
    part = unbounded_part(read_json(file)) if file.exists() else None
    if part is not None:
        raise ModelInvalid(
            f"tokenizer.json has {part}, whose time is not bounded; models that make images"
            " need a tokenizer of usual expressions"
        )


def _sizes(folder: Path) -> tuple[int, SideLimits]:
    """Pixels per latent element, and the limits of images' sides; raises ModelInvalid."""
    unet, vae = (
        read_json(folder / "unet" / "config.json"),
        read_json(folder / "vae" / "config.json"),
    )
    channels, blocks = vae.get("block_out_channels"), unet.get("block_out_channels")
    size = unet.get("sample_size")
    if not isinstance(channels, list) or not isinstance(blocks, list) or type(size) is not int:
        raise ModelInvalid("unet/config.json and vae/config.json must hold sizes and channels")
    scale = 2 ** (len(channels) - 1)
    return scale, SideLimits(size * scale, scale * 2 ** (len(blocks) - 1))


def _png(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue())
