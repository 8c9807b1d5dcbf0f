"""What every task offers: reading inputs, the three stages, and writing outputs.

A processor is a task with the small files of one model (tokenizer, labels): it can pre- and
postprocess without weights, which is how an entry pod serves a model that infers elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from runtime.device.tensor_batching import Batching
    from runtime.wire.tensors import Tensor


class Processor(Protocol):
    """One model's task. All methods block and are called in threads; all are safe to share."""

    @property
    def batching(self) -> Batching:
        """What its tensors must be, and how those of several requests make one batch."""

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Any]:
        """Items from a V1 body; raises InvalidRequest."""

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Items from a V2 body; raises InvalidRequest."""

    def preprocess(self, items: Sequence[Any]) -> tuple[Tensor, ...]:
        """What the network takes."""

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the network; called by the device worker alone."""

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The answer's V2 outputs from what the network gave."""

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """The answer's V1 predictions from its V2 outputs."""

    def warm_up(self, network: PreTrainedModel) -> None:
        """One short inference; called by the device worker alone."""

    def input_types(self) -> list[dict[str, Any]]:
        """The V2 metadata of the inputs."""

    def output_types(self) -> list[dict[str, Any]]:
        """The V2 metadata of the outputs."""
