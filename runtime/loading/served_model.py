"""A model on the device with the hooks of KServe's SDK: preprocess, predict, postprocess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kserve import InferOutput, InferRequest, InferResponse, Model
from kserve.errors import InvalidInput

from runtime.device.device_model import DeviceModel, Payload
from runtime.device.stepwise import Stepwise, run_steps
from runtime.errors import InvalidRequest
from runtime.threads import in_thread
from runtime.wire.tensors import BYTES, Tensor, bytes_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

    from transformers import PreTrainedModel

    from registry.domain.model import ModelPolicy, ModelSpec
    from runtime.device.queue import InferenceResult
    from runtime.device.worker import DeviceWorker
    from runtime.generation.engine import GenerationEngine
    from runtime.tasks.task import Processor


@dataclass(frozen=True, slots=True)
class _Stage:
    """Tensors between KServe's hooks, with the V2 request that they belong to."""

    tensors: tuple[Tensor, ...]
    request: InferRequest | None


class ServedModel(Model):  # type: ignore[misc]  # kserve ships no types
    """One generation of a model with its network; also works under KServe's own endpoints."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        processor: Processor,
        network: PreTrainedModel,
        device: DeviceWorker,
        threads: Executor,
    ) -> None:
        super().__init__(spec.name.path_segment)
        self.spec = spec
        self.processor = processor
        self._network: PreTrainedModel | None = network
        self._device = device
        self._threads = threads
        self.device_model = DeviceModel(
            spec.key,
            str(spec.name),
            self.infer_together,
            spec.policy,
            max_rows=processor.batching.max_rows,
        )
        self.generator: GenerationEngine | None = None
        """Generates tokens, if the model generates text."""
        self.ready = True

    @property
    def is_broken(self) -> bool:
        """Whether an inference hung, after which the model runs no more."""
        return self.device_model.broken_reason is not None

    async def warm_up(self) -> None:
        """One short inference; raises the network's errors."""
        network = self._network_in_use()
        await self._device.run(lambda: self.processor.warm_up(network), model=self.device_model)

    async def infer(
        self,
        inputs: tuple[Tensor, ...],
        *,
        deadline_s: float | None = None,
        policy: ModelPolicy | None = None,
    ) -> InferenceResult[tuple[Tensor, ...]]:
        """Run the network on checked inputs, batched with queued ones; raises as the device does.

        `policy` is that of the model's current annotations, which limits its batches.
        """
        self.device_model.policy = policy or self.device_model.policy
        batching = self.processor.batching
        if isinstance(self.processor, Stepwise):
            steps = self.processor.steps(self._network_in_use(), inputs)
            return await run_steps(self._device, self.device_model, steps, deadline_s=deadline_s)
        key = batching.batch_key(inputs, self._network_in_use())
        payload = Payload(inputs, batching.rows_of(inputs), batching.tokens_per_row(inputs), key)
        return await self._device.infer(self.device_model, payload, deadline_s=deadline_s)

    def infer_together(self, requests: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """The outputs of each request from one inference; called by the device."""
        network, batching = self._network_in_use(), self.processor.batching
        outputs = self.processor.infer(network, batching.join(requests))
        if len(requests) == 1:
            return [outputs]
        return batching.split(outputs, [batching.rows_of(inputs) for inputs in requests])

    def _network_in_use(self) -> PreTrainedModel:
        if self._network is None:
            raise RuntimeError(f"{self.spec.key} was used after its removal from the device")
        return self._network

    async def preprocess(self, payload: Any, headers: Mapping[str, str] | None = None) -> _Stage:
        """From a V1 dict or an InferRequest to the network's tensors."""
        del headers
        try:
            if isinstance(payload, InferRequest):
                request, items = payload, self.processor.read_tensors(_tensors_of(payload))
            else:
                instances = payload.get("instances", payload.get("inputs"))
                if not isinstance(instances, list):
                    raise InvalidRequest("the body must have a list 'instances'")
                request, items = None, self.processor.read_instances(instances)
        except InvalidRequest as error:
            raise InvalidInput(str(error)) from error
        tensors = await in_thread(self._threads, self.processor.preprocess, items)
        return _Stage(self.processor.batching.validate(tensors), request)

    async def predict(self, payload: _Stage, headers: Mapping[str, str] | None = None) -> _Stage:
        del headers
        return _Stage((await self.infer(payload.tensors)).value, payload.request)

    async def postprocess(self, result: _Stage, headers: Mapping[str, str] | None = None) -> Any:
        """To a V1 dict or an InferResponse."""
        del headers
        outputs = await in_thread(self._threads, self.processor.postprocess, result.tensors)
        if result.request is None:
            return {"predictions": self.processor.predictions(outputs)}
        return InferResponse(
            response_id=result.request.id or "",
            model_name=self.name,
            infer_outputs=[_infer_output(tensor) for tensor in outputs],
        )

    def get_input_types(self) -> list[dict[str, Any]]:
        return self.processor.input_types()

    def get_output_types(self) -> list[dict[str, Any]]:
        return self.processor.output_types()

    def stop(self) -> None:
        """Drop the network, which unmaps its weights."""
        super().stop()
        self._network = None
        if self.generator is not None:
            self.generator.close()
            self.generator = None


def _tensors_of(request: InferRequest) -> list[Tensor]:
    tensors = []
    for each in request.inputs:
        data = each.as_numpy()
        if each.datatype == BYTES:
            values = [v.encode() if isinstance(v, str) else bytes(v) for v in data.ravel()]
            tensors.append(bytes_tensor(each.name, values))
        else:
            tensors.append(Tensor(each.name, each.datatype, data))
    return tensors


def _infer_output(tensor: Tensor) -> InferOutput:
    output = InferOutput(tensor.name, list(tensor.shape), tensor.datatype)
    output.set_data_from_numpy(tensor.data, binary_data=False)
    return output
