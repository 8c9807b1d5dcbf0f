"""`/openai/v1/images/generations`; imported with the first request for an image."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import orjson
from pydantic import Field

from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor
from runtime.openai.requests import InvalidField, ModelBody, Unsupported
from runtime.tasks.text_to_image import (
    MAX_GUIDANCE,
    MAX_IMAGES,
    MAX_SEED,
    MAX_SIDE,
    MAX_STEPS,
    SideLimits,
    TextToImage,
)

if TYPE_CHECKING:
    from runtime.openai.endpoint import Call, Inferences


class ImageBody(ModelBody):
    """The body; the fields below `size` are not OpenAI's."""

    unsupported: ClassVar[Unsupported] = {
        "response_format": ("b64_json",),
        "stream": (False,),
        "partial_images": (0,),
        "output_format": ("png",),
        "output_compression": (100,),
        "background": ("auto", "opaque"),
        "quality": ("auto", "standard"),
        "style": (),
    }
    ignored: ClassVar[frozenset[str]] = ModelBody.ignored | {"moderation"}
    prompt: str
    n: Annotated[int, Field(ge=1, le=MAX_IMAGES)] | None = None
    size: Annotated[str, Field(pattern=r"^(auto|[0-9]{1,4}x[0-9]{1,4})$")] | None = None
    negative_prompt: str | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=MAX_GUIDANCE)] | None = None


async def make_images(inferences: Inferences, call: Call[ImageBody]) -> None:
    processor = await inferences.processor(call.head, TextToImage, "make images")
    await inferences.serve(call, _inputs(call.body, processor.sides), _encode)


def _encode(outputs: Sequence[Tensor]) -> bytes:
    """The response body, with one PNG image in base64 per output."""
    (images,) = outputs
    data = [{"b64_json": image.decode()} for image in images.data]
    return orjson.dumps({"created": int(time.time()), "data": data, "output_format": "png"})


def _inputs(body: ImageBody, sides: SideLimits) -> list[Tensor]:
    """A prompt and a seed per image, and parameters that all images share; raises InvalidField."""
    width, height = _size(body, sides)
    first_seed = secrets.randbelow(MAX_SEED) if body.seed is None else body.seed
    count = body.n or 1
    inputs = [
        bytes_tensor("prompt", [body.prompt.encode()] * count),
        numeric_tensor(
            "seed", np.array([(first_seed + index) % (MAX_SEED + 1) for index in range(count)])
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


def _size(body: ImageBody, sides: SideLimits) -> tuple[int, int]:
    if body.size in {None, "auto"}:
        return sides.default, sides.default
    width, height = (int(side) for side in str(body.size).split("x"))
    if not sides.allow(width) or not sides.allow(height):
        raise InvalidField(
            f"size must be WIDTHxHEIGHT, each a multiple of {sides.multiple} from"
            f" {sides.multiple} to {MAX_SIDE}, was {body.size!r}",
            param="size",
        )
    return width, height
