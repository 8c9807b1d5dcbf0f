"""Text to image: prompts to PNG images in base64. Imported when such a model is loaded."""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from common.inference_protocol.tensors import (
    BYTES,
    Tensor,
    bytes_tensor,
    named_arrays,
    numeric_tensor,
)
from registry.domain.model import Task
from runtime.engines.images import DiffusionJob, Pipeline, check_index, diffuse
from runtime.engines.networks.configuration import read_json
from runtime.errors import ModelInvalid
from runtime.sandbox.expressions import unbounded_part
from runtime.tasks.image_requests import (
    ImageBatching,
    ImageRequest,
    SideLimits,
    instances_of,
    parse_image_requests,
)
from runtime.tasks.task import Processor
from runtime.tasks.tokenizer_files import load_tokenizer

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
