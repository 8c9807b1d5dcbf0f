"""Images from texts: an inference like any other, with OpenAI's bodies around it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from runtime.engines.images.image_requests import MOST_PIXELS, MOST_SEED
from runtime.openai.answers import images
from runtime.openai.requests import InvalidField
from runtime.tasks.text_to_image import TextToImage
from runtime.wire.tensors import bytes_tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.engines.images.image_requests import Sides
    from runtime.openai.exchange import Call
    from runtime.openai.inference import Inferences
    from runtime.openai.requests import ImageBody
    from runtime.wire.tensors import Tensor


@dataclass(frozen=True, slots=True)
class ImageRoute:
    """Answers the endpoint."""

    inferences: Inferences

    async def answer(self, call: Call[ImageBody]) -> None:
        """Answer one request."""
        processor = await self.inferences.processor(call.head, TextToImage, "make images")
        inputs = _inputs(call.body, processor.sides)

        def write(outputs: Sequence[Tensor]) -> bytes:
            (pictures,) = outputs
            return images(
                [picture.decode() for picture in pictures.data], created_s=int(time.time())
            )

        await self.inferences.answer(call.head, inputs, write, call.reply)


def _inputs(body: ImageBody, sides: Sides) -> list[Tensor]:
    """A row for each image: its own seed, and one of what they share; raises InvalidField."""
    width, height = _size(body, sides)
    first_seed = secrets.randbelow(MOST_SEED) if body.seed is None else body.seed
    count = body.n or 1
    inputs = [
        bytes_tensor("prompt", [body.prompt.encode()] * count),
        numeric_tensor(
            "seed", np.array([(first_seed + index) % (MOST_SEED + 1) for index in range(count)])
        ),
        numeric_tensor("width", np.array([width])),
        numeric_tensor("height", np.array([height])),
    ]
    if body.negative_prompt is not None:
        inputs.append(bytes_tensor("negative_prompt", [body.negative_prompt.encode()]))
    if body.num_inference_steps is not None:
        inputs.append(numeric_tensor("num_inference_steps", np.array([body.num_inference_steps])))
    if body.guidance_scale is not None:
        inputs.append(numeric_tensor("guidance_scale", np.array([body.guidance_scale])))
    return inputs


def _size(body: ImageBody, sides: Sides) -> tuple[int, int]:
    if body.size in {None, "auto"}:
        return sides.default, sides.default
    width, height = (int(side) for side in str(body.size).split("x"))
    if not sides.allow(width) or not sides.allow(height):
        raise InvalidField(
            f"size must be WIDTHxHEIGHT, each a multiple of {sides.multiple} from"
            f" {sides.multiple} to {MOST_PIXELS}, was {body.size!r}",
            param="size",
        )
    return width, height
