"""A library's model and its task, as a pod loads them, without a pod."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from common.inference_protocol.tensors import Tensor
from registry.domain.model import Task
from runtime.tasks.processors import load_processor
from runtime.tasks.task import Processor
from tests.runtime.networks import load_network


@dataclass(frozen=True)
class Loaded:
    processor: Processor
    network: Any

    def v1(self, instances: Sequence[Any]) -> list[Any]:
        """The predictions of a V1 body's instances."""
        return self.processor.predictions(self.v2(self.processor.read_instances(instances)))

    def v2(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of a V2 request."""
        inputs = self.processor.batching.validate(
            self.processor.preprocess(self.processor.read_tensors(tensors))
        )
        self.processor.batching.batch_key(inputs, self.network)
        return self.processor.postprocess(self.processor.infer(self.network, inputs))


def onnx_model(
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, int, Any]],
    outputs: Sequence[tuple[str, int, Any]],
    constants: Sequence[Any] = (),
    **more: Any,
) -> onnx.ModelProto:
    """Inputs and outputs as name, type and shape; operators of ONNX, and of a domain `own`."""
    ports = ([helper.make_tensor_value_info(*each) for each in part] for part in (inputs, outputs))
    graph = helper.make_graph(nodes, "g", *ports, list(constants))
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=9, **more)


def load(folder: Path, task: Task | None = None, extra: Sequence[Path] = ()) -> Loaded:
    """Raises LoadFailed, as a load in a pod does."""
    processor = load_processor(folder, task)
    network = load_network(folder, task, extra=extra)
    processor.warm_up(network)
    return Loaded(processor, network)
