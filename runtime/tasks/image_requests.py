"""Requests for images: V1 instances and V2 tensors to validated parameters, one set per image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.inference_protocol.errors import InvalidRequest
from common.inference_protocol.tensors import BYTES, Tensor, numeric_tensor
from common.shown_value import shown
from runtime.tasks.task import texts_of
from runtime.tasks.tensor_batching import Batching

MAX_IMAGES = 16
MAX_STEPS = 200
MAX_SIDE = 2048
"""In pixels."""
MAX_SEED = 2**63 - 1
MAX_GUIDANCE = 100.0
DEFAULT_STEPS = 30
DEFAULT_GUIDANCE = 7.5
FIELDS = (
    "prompt",
    "negative_prompt",
    "seed",
    "num_inference_steps",
    "width",
    "height",
    "guidance_scale",
)


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


# The inference stage's tensors

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
