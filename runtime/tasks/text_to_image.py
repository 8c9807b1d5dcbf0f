"""Text to image: prompts to PNG images in base64."""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    BYTES,
    NUMPY_OF,
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
from runtime.tasks.task import Batching, Processor, one_each, texts_of
from runtime.tasks.tokenizer_files import load_tokenizer, unbounded_part

MAX_IMAGES = 16
MAX_STEPS = 200
MAX_SIDE = 2048
"""In pixels."""
MAX_SEED = 2**63 - 1
MAX_GUIDANCE = 100.0
DEFAULT_STEPS = 30
DEFAULT_GUIDANCE = 7.5


@dataclass(frozen=True, slots=True)
class SideLimits:
    """The default side of an image, and the number that every side must be a multiple of."""

    default: int
    multiple: int

    def allow(self, side: int) -> bool:
        return self.multiple <= side <= MAX_SIDE and side % self.multiple == 0


@dataclass(frozen=True, slots=True)
class _Number:
    """A parameter of an image: the field of a request, and the tensor of the network's inputs."""

    field: str
    tensor: str
    low: int
    high: float
    default: float
    multiple: int = 1
    is_whole: bool = True

    def parse(self, instance: Mapping[str, Any], path: str) -> float:
        """Raises InvalidRequest."""
        value = instance.get(self.field, self.default)
        is_number = type(value) is int or (type(value) is float and not self.is_whole)
        fits = is_number and self.low <= value <= self.high
        if not fits or (self.is_whole and value % self.multiple):
            kind = f"a multiple of {self.multiple}" if self.multiple > 1 else "a whole number"
            raise InvalidRequest(
                f"{path}: {self.field!r} must be {kind if self.is_whole else 'a number'} from"
                f" {self.low} to {self.high}, was {shown(value)}"
            )
        return value  # type: ignore[no-any-return]  # a number

    @property
    def datatype(self) -> str:
        return "INT64" if self.is_whole else "FP32"

    def of(self, values: Sequence[float]) -> Tensor:
        return numeric_tensor(self.tensor, np.array(values, NUMPY_OF[self.datatype]))


def _numbers(sides: SideLimits) -> tuple[_Number, ...]:
    return (
        _Number("seed", "seed", 0, MAX_SEED, 0),
        _Number("num_inference_steps", "steps", 1, MAX_STEPS, DEFAULT_STEPS),
        _Number("width", "width", sides.multiple, MAX_SIDE, sides.default, sides.multiple),
        _Number("height", "height", sides.multiple, MAX_SIDE, sides.default, sides.multiple),
        _Number("guidance_scale", "guidance", 0, MAX_GUIDANCE, DEFAULT_GUIDANCE, is_whole=False),
    )


@dataclass(frozen=True, slots=True)
class ImageRequest:
    prompt: str
    negative_prompt: str
    numbers: Mapping[str, float]
    """By tensor."""


def _parse_images(
    instances: Sequence[Any], numbers: Sequence[_Number], *, where: str = "instances"
) -> list[ImageRequest]:
    """The images of a V1 body; `where` names its list in errors. Raises InvalidRequest."""
    if not 0 < len(instances) <= MAX_IMAGES:
        raise InvalidRequest(
            f"a request must ask for 1 to {MAX_IMAGES} images, asked for {len(instances)}"
        )
    images = [_parse(instance, f"{where}[{i}]", numbers) for i, instance in enumerate(instances)]
    if len({(image.numbers["width"], image.numbers["height"]) for image in images}) > 1:
        raise InvalidRequest("all images of a request must have one width and one height")
    return images


def _instances_of(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    """A V2 body as V1 instances: each tensor has one value per image, or one for all images."""
    named = {tensor.name: tensor for tensor in tensors}
    prompts = named.get("prompt")
    if prompts is None or prompts.datatype != BYTES:
        raise InvalidRequest(f"inputs must hold a BYTES tensor 'prompt', were {sorted(named)[:8]}")
    count = prompts.data.size
    values = {
        name: texts_of(each) if each.datatype == BYTES else each.data.ravel().tolist()
        for name, each in named.items()
    }
    columns = {name: one_each(name, given, count) for name, given in values.items()}
    return [{name: values[row] for name, values in columns.items()} for row in range(count)]


def _parse(instance: Any, path: str, numbers: Sequence[_Number]) -> ImageRequest:
    if isinstance(instance, str):
        instance = {"prompt": instance}
    if not isinstance(instance, dict) or not isinstance(instance.get("prompt"), str):
        raise InvalidRequest(
            f"{path} must be an object with a string 'prompt', was {shown(instance)}"
        )
    fields = ["prompt", "negative_prompt", *(each.field for each in numbers)]
    if unknown := sorted(set(map(str, instance)) - set(fields)):
        raise InvalidRequest(
            f"{path} has unknown fields {unknown[:5]}; allowed are {', '.join(fields)}"
        )
    negative = instance.get("negative_prompt", "")
    if not isinstance(negative, str):
        raise InvalidRequest(f"{path}: 'negative_prompt' must be a string")
    values = {each.tensor: each.parse(instance, path) for each in numbers}
    return ImageRequest(instance["prompt"], negative, values)


_IDS: Final = ("prompt_ids", "negative_ids")


@dataclass(frozen=True)
class ImageBatching(Batching):
    """Validates the tensors of image requests; images are generated one by one, not in batches."""

    numbers: tuple[_Number, ...]
    vocabulary_size: int
    max_tokens: int
    max_rows: int | None = 1

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        named = {tensor.name: tensor for tensor in inputs}
        names = [*_IDS, *(each.tensor for each in self.numbers)]
        if sorted(named) != sorted(names) or len(inputs) != len(names):
            raise InvalidRequest(f"inference needs {names}, got {sorted(named)[:8]}")
        rows = named["seed"].data.size
        if not 0 < rows <= MAX_IMAGES:
            raise InvalidRequest(f"a request must ask for 1 to {MAX_IMAGES} images, was {rows}")
        for name in _IDS:
            form = ("INT64", (rows, self.max_tokens))
            _check(named[name], *form, low=0, high=self.vocabulary_size - 1)
        for each in self.numbers:
            tensor = named[each.tensor]
            _check(tensor, each.datatype, (rows,), low=each.low, high=each.high)
            if each.multiple > 1 and (
                (tensor.data % each.multiple).any() or (tensor.data != tensor.data[0]).any()
            ):
                raise InvalidRequest(f"images must have one size, multiples of {each.multiple}")
        return tuple(named[name] for name in names)

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        """Images of two steps."""
        ids = np.zeros((rows, self.max_tokens), np.int64)
        defaults = {each.tensor: each.default for each in self.numbers} | {"steps": 2}
        return (
            *(numeric_tensor(name, ids) for name in _IDS),
            *(each.of([defaults[each.tensor]] * rows) for each in self.numbers),
        )


def _check(tensor: Tensor, datatype: str, shape: tuple[int, ...], *, low: int, high: float) -> None:
    if tensor.datatype != datatype or tensor.shape != shape:
        raise InvalidRequest(
            f"tensor {tensor.name!r} must be {datatype} {list(shape)},"
            f" was {tensor.datatype} {list(tensor.shape)}"
        )
    if not ((tensor.data >= low) & (tensor.data <= high)).all():
        raise InvalidRequest(f"tensor {tensor.name!r} must hold values from {low} to {high}")


WARM_UP_STEPS = 2
MAX_TOKENS = 77
"""CLIP's context, if the tokenizer sets no limit."""


class TextToImage(Processor):
    platform = "diffusers"
    answers_openai = True

    def __init__(self, folder: Path, declared: Task | None) -> None:
        if declared not in {None, Task.TEXT_TO_IMAGE}:
            raise ModelInvalid(f"the model makes images, but task {declared.value!r} is declared")
        check_index(folder)
        _check_expressions(folder / "tokenizer" / "tokenizer.json")
        self._tokenizer = load_tokenizer(folder / "tokenizer")
        self._max_tokens = min(self._tokenizer.model_max_length, MAX_TOKENS)
        self._scale, self.sides = _sizes(folder)
        self._numbers = _numbers(self.sides)
        self.batching = ImageBatching(self._numbers, len(self._tokenizer), self._max_tokens)

    def read_instances(self, instances: Sequence[Any]) -> list[ImageRequest]:
        return _parse_images(instances, self._numbers)

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[ImageRequest]:
        """Tensors with the names of the V1 fields."""
        return _parse_images(_instances_of(tensors), self._numbers, where="images")

    def preprocess(self, items: Sequence[ImageRequest]) -> tuple[Tensor, ...]:
        """Tokens and parameters, a row for each image."""
        return (
            self._tokens("prompt_ids", [item.prompt for item in items]),
            self._tokens("negative_ids", [item.negative_prompt for item in items]),
            *(each.of([item.numbers[each.tensor] for item in items]) for each in self._numbers),
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
            values = {each.tensor: arrays[each.tensor][row].item() for each in self._numbers}
            prompt, negative = (arrays[name][row : row + 1] for name in _IDS)
            job = DiffusionJob(prompt, negative, **values)
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
        return [
            {"name": "prompt", "datatype": BYTES, "shape": [-1]},
            {"name": "negative_prompt", "datatype": BYTES, "shape": [-1]},
            *(
                {"name": each.field, "datatype": each.datatype, "shape": [-1]}
                for each in self._numbers
            ),
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
