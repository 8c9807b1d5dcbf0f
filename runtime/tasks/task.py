"""The interface of all tasks: reading inputs, the three stages, and writing outputs.

A processor is a task with the small files of one model (tokenizer, labels). It can preprocess and
postprocess without weights, so an entry pod can serve a model whose inference runs at another pod.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from common.inference_protocol.encodings import from_json
from common.inference_protocol.errors import InvalidRequest
from common.inference_protocol.tensors import BYTES, Tensor, parse_tensor_spec

if TYPE_CHECKING:
    from runtime.tasks.tensor_batching import Batching


class Processor(ABC):
    """One model's task. All methods block and are thread-safe.

    By default the items of a request are its tensors, as they are, and so are its outputs.
    """

    batching: Batching
    """How its tensors are validated and batched."""

    @property
    @abstractmethod
    def platform(self) -> str:
        """What runs the model, for V2 metadata: transformers, onnx and so on."""

    @property
    def waits_for_sandbox(self) -> bool:
        """True if its calls wait for other processes: they get threads of their own."""
        return False

    @property
    def is_quick(self) -> bool:
        """Whether the event loop may convert `QUICK_BYTES`: work in proportion, unlike images'."""
        return False

    @abstractmethod
    def read_instances(self, instances: Sequence[Any]) -> Sequence[Any]:
        """Items from a V1 body; raises InvalidRequest."""

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Items from a V2 body; raises InvalidRequest."""
        return tensors

    def preprocess(self, items: Sequence[Any]) -> tuple[Tensor, ...]:
        """The network's inputs."""
        return tuple(items)

    @abstractmethod
    def infer(self, network: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the network; called in the device's thread only."""

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """V2 outputs from the network's outputs."""
        return tuple(outputs)

    @abstractmethod
    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """V1 predictions from V2 outputs."""

    @abstractmethod
    def warm_up(self, network: Any) -> None:
        """One short inference; called in the device's thread only."""

    @abstractmethod
    def input_types(self) -> list[dict[str, Any]]:
        """V2 metadata of the inputs."""

    @abstractmethod
    def output_types(self) -> list[dict[str, Any]]:
        """V2 metadata of the outputs."""


def texts_of(tensor: Tensor) -> list[str]:
    """The strings of a tensor of the type BYTES; raises InvalidRequest."""
    if tensor.datatype != BYTES:
        raise InvalidRequest(f"input {tensor.name!r} must be BYTES, was {tensor.datatype}")
    try:
        return [value.decode("utf-8") for value in tensor.data.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"input {tensor.name!r} must hold UTF-8, but byte {error.start} of one is not"
        ) from error


def nested_tensor(name: str, datatype: str, data: Any) -> Tensor:
    """A tensor from nested lists of V1, whose depth and lengths give its shape."""
    shape: list[int] = []
    inner = data
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    values = data if shape else [data]
    path = f"instances, input {name!r}"
    return from_json(values, parse_tensor_spec(name, datatype, shape, path))
