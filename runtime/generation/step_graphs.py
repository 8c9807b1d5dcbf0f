"""CUDA graphs of steps without prompts: one for each number of requests, padding included.

A graph ends with the logits: tokens are selected by numbers of the host, which a graph would keep.
It holds the addresses of weights and pages, so it lives as long as the engine of a loaded model;
after the next load it is captured again.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as trees

from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.device.forward_graphs import MIN_USES

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.device.forward_graphs import Graph, GraphMaker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph
    inputs: list[torch.Tensor]
    outputs: torch.Tensor


class StepGraphs:
    """Used by the device's thread alone, for one network and cache."""

    def __init__(self, maker: GraphMaker, min_uses: int = MIN_USES) -> None:
        """`min_uses`: steps of a size until it is captured."""
        self._maker = maker
        self._min_uses = min_uses
        self._pool: object | None = None
        self._uses: Counter[int] = Counter()
        self._captured: dict[int, _Captured | None] = {}
        """By number of requests; None: it cannot be captured."""

    def __len__(self) -> int:
        return sum(each is not None for each in self._captured.values())

    def run(self, size: int, work: Callable[[Any], torch.Tensor], inputs: Any) -> torch.Tensor:
        """What `work` makes of the inputs; valid until the next step.

        Inputs of one size differ in the values of their tensors alone: all else is captured.
        Raises what `work` raises, and errors of the device.
        """
        if size not in self._captured:
            self._uses[size] += 1
            if self._uses[size] < self._min_uses:
                return work(inputs)
            self._captured[size] = self._capture(work, inputs)
        captured = self._captured[size]
        if captured is None:
            return work(inputs)
        for own, new in zip(captured.inputs, _tensors(inputs), strict=True):
            own.copy_(new)
        captured.graph.replay()
        return captured.outputs

    def _capture(self, work: Callable[[Any], torch.Tensor], inputs: Any) -> _Captured | None:
        own = trees.tree_map_only(torch.Tensor, torch.clone, inputs)
        self._pool = self._pool or self._maker.new_pool()
        try:
            graph, outputs = self._maker.capture(lambda: work(own), self._pool)
        except RuntimeError as error:
            if is_out_of_memory(error) or is_device_error(error):
                raise
            logger.info("step not captured", extra={"error": error})
            return None
        return _Captured(graph, _tensors(own), outputs)


def _tensors(inputs: Any) -> list[torch.Tensor]:
    return [each for each in trees.tree_leaves(inputs) if isinstance(each, torch.Tensor)]
