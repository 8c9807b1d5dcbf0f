"""Validation of an image request's tensors. Images are generated one by one, not in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from runtime.engines.images.image_requests import (
    DEFAULT_GUIDANCE,
    MAX_GUIDANCE,
    MAX_IMAGES,
    MAX_SEED,
    MAX_SIDE,
    MAX_STEPS,
)
from runtime.errors import InvalidRequest
from runtime.wire.tensors import Tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from transformers import PreTrainedModel

    from runtime.engines.images.image_requests import SideLimits

NAMES = ("prompt_ids", "negative_ids", "seed", "steps", "width", "height", "guidance")


@dataclass(frozen=True, slots=True)
class ImageBatching:
    """Implements `Batching` for one model."""

    sides: SideLimits
    vocabulary_size: int
    max_tokens: int
    max_rows: int | None = 1

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        named = {tensor.name: tensor for tensor in inputs}
        if sorted(named) != sorted(NAMES) or len(inputs) != len(NAMES):
            raise InvalidRequest(f"inference needs {list(NAMES)}, got {sorted(named)[:8]}")
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
        return tuple(named[name] for name in NAMES)

    def rows_of(self, inputs: Sequence[Tensor]) -> int:
        return len(inputs[0].data)

    def batch_key(self, inputs: Sequence[Tensor], network: PreTrainedModel) -> Hashable:
        del inputs, network
        return None

    def tokens_per_row(self, inputs: Sequence[Tensor]) -> int:
        del inputs
        return 1

    def join(self, requests: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        (inputs,) = requests
        return tuple(inputs)

    def split(self, outputs: Sequence[Tensor], rows: Sequence[int]) -> list[tuple[Tensor, ...]]:
        del rows
        return [tuple(outputs)]

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        """Images of two steps."""
        del tokens
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
