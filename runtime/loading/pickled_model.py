"""A pickled estimator, which infers in its namespace's process, beside the device's queue.

So one that hangs holds up no model but those of its own process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from runtime.device.queue import InferenceResult
from runtime.errors import InferenceFailed, InvalidRequest
from runtime.loading.model_elsewhere import ModelElsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.domain.model import ModelPolicy, ModelSpec
    from runtime.device.model_inputs import ModelInputs
    from runtime.device.worker import DeviceWorker
    from runtime.sandbox.estimators import Estimators, LoadedEstimator
    from runtime.tasks.task import Processor
    from runtime.wire.tensors import Tensor


class PickledModel(ModelElsewhere):
    def __init__(
        self,
        spec: ModelSpec,
        *,
        processor: Processor,
        network: LoadedEstimator,
        device: DeviceWorker,
        estimators: Estimators,
    ) -> None:
        super().__init__(spec, processor=processor, network=network, device=device)
        self._loaded = network
        self._estimators = estimators

    async def infer(
        self,
        inputs: tuple[Tensor, ...],
        *,
        deadline_s: float | None = None,
        due_s: float | None = None,
        policy: ModelPolicy | None = None,
        keeps_outputs: bool = False,
    ) -> InferenceResult[tuple[Tensor, ...]]:
        """The outputs of checked inputs, alone; raises as `Estimators.infer` does.

        `due_s` changes nothing: its process takes requests in the order of their arrival.
        """
        del keeps_outputs  # they come from another process
        self.device_model.policy = policy or self.device_model.policy
        begun_s = time.monotonic()
        outputs = await self._estimators.infer(
            self._loaded,
            inputs,
            limit_s=self._limit_s(self.device_model.policy),
            deadline_s=deadline_s,
        )
        rows = self.processor.batching.rows_of(inputs)
        if not outputs or any(tensor.shape[:1] != (rows,) for tensor in outputs):
            shapes = [list(tensor.shape) for tensor in outputs]
            raise InferenceFailed(f"the model gave outputs of shape {shapes} for {rows} rows")
        return InferenceResult(outputs, 0.0, time.monotonic() - begun_s)

    def infer_together(self, requests: Sequence[ModelInputs]) -> list[tuple[Tensor, ...]]:
        raise InvalidRequest(
            "a pickled model cannot be profiled, since each request runs alone: convert it with"
            " `pilotlight convert`"
        )
