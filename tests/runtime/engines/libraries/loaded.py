"""A library's model and its task, as a pod loads them, without a pod."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from common.inference_protocol.tensors import Tensor
from registry.domain.model import Task
from runtime.engines.building import estimator_path
from runtime.sandbox.estimators import Estimators
from runtime.storage.listing import SKOPS_SUFFIX
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


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


@cache
def _estimators() -> Estimators:
    async def make() -> Estimators:
        return Estimators(threads=1)

    return asyncio.run_coroutine_threadsafe(make(), _event_loop()).result()


class SandboxedEstimator:
    """An estimator in the process of a namespace, which checks its own rows."""

    def __init__(self, path: Path, task: Task | None) -> None:
        self._loaded = _estimators().load_in_thread(
            f"default/{path.parent.name}@1",
            memoryview(path.read_bytes()),
            is_skops=path.suffix == SKOPS_SUFFIX,
            wants_probabilities=task is Task.TABULAR_CLASSIFICATION,
        )

    def check(self, inputs: Sequence[Tensor]) -> None:
        """Nothing: the process does."""

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        asked = _estimators().infer(self._loaded, inputs, limit_s=60.0, deadline_s=None)
        return asyncio.run_coroutine_threadsafe(asked, _event_loop()).result()


def load(folder: Path, task: Task | None = None, extra: Sequence[Path] = ()) -> Loaded:
    """Raises LoadFailed, as a load in a pod does."""
    processor = load_processor(folder, task)
    if (estimator := estimator_path(folder)) is not None:
        return Loaded(processor, SandboxedEstimator(estimator, task))
    network = load_network(folder, task, extra=extra)
    processor.warm_up(network)
    return Loaded(processor, network)
