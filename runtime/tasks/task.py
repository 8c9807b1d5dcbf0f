"""The interface of all tasks: reading inputs, the three stages, and writing outputs.

A processor is a task with the small files of one model (tokenizer, labels). It can preprocess and
postprocess without weights, so an entry pod can serve a model whose inference runs at another pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from runtime.tasks.tensor_batching import Batching
    from runtime.wire.tensors import Tensor


class Processor(Protocol):
    """One model's task. All methods block and are thread-safe."""

    @property
    def platform(self) -> str:
        """What runs the model, for V2 metadata: transformers, onnx and so on."""

    @property
    def waits_for_sandbox(self) -> bool:
        """True if its calls wait for other processes: they get threads of their own."""

    @property
    def batching(self) -> Batching:
        """How its tensors are validated and batched."""

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Any]:
        """Items from a V1 body; raises InvalidRequest."""

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Items from a V2 body; raises InvalidRequest."""

    def preprocess(self, items: Sequence[Any]) -> tuple[Tensor, ...]:
        """The network's inputs."""

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the network; called in the device's thread only."""

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """V2 outputs from the network's outputs."""

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """V1 predictions from V2 outputs."""

    def warm_up(self, network: PreTrainedModel) -> None:
        """One short inference; called in the device's thread only."""

    def input_types(self) -> list[dict[str, Any]]:
        """V2 metadata of the inputs."""

    def output_types(self) -> list[dict[str, Any]]:
        """V2 metadata of the outputs."""
