"""The three stages of a predict request, with the inference at this pod or at another one.

An entry request takes one of the pod's slots from its preprocessing to the end of its
postprocessing, a step that a scheduler has placed a place in the step queue. A request for the
inference stage alone comes from another pod and takes neither.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from common.inference_protocol import InvalidRequest, PodError
from common.inference_protocol.bodies import BINARY_TYPE, LENGTH_HEADER, EncodedBody, check_values
from common.inference_protocol.tensors import REFERENCE_FLAG, Tensor
from registry.domain.estimates import OUTPUT_BYTES
from registry.domain.model import ModelSpec
from registry.domain.pod import Stage
from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.engines.server_engine import ModelServer
from runtime.errors import InferenceFailed, NoRoomToInfer, RemotePodUnreachable
from runtime.inference_request import (
    DecodedBody,
    RequestHead,
    WireProtocol,
    decode_body,
    encode_body,
)
from runtime.loading.external_model import ProxiedModel, renamed
from runtime.loading.load_coordinator import AcquiredModel, LoadCoordinator
from runtime.loading.model_store import ServedModel
from runtime.loading.processors import Processors
from runtime.measurements import Measurements
from runtime.registry_agent import InferenceEndNotifier
from runtime.serving.in_flight import InFlightRequests, PredictRequest, PredictResponse
from runtime.serving.remote_inference import RemoteInference
from runtime.serving.repository import ModelCatalog
from runtime.serving.tensor_exchange import StepTensors
from runtime.tasks.task import Processor
from runtime.threads import QUICK_BYTES, SMALL_BODY_BYTES, as_exception, in_thread

Encoder = Callable[[Sequence[Tensor]], EncodedBody]
Arguments = TypeVarTuple("Arguments")
Converted = TypeVar("Converted")

BINARY_FLAG = b'"binary_data'
"""Of V2's parameters `binary_data` and `binary_data_output`, which ask for binary tensors."""
BAD_TENSOR_ERRORS = (ValueError, TypeError, IndexError, KeyError, AttributeError, RuntimeError)
"""What torch raises for tensors of the wrong shape, type or range."""


@dataclass(frozen=True, slots=True)
class PredictService:
    pod_name: str
    address: str
    """`host:port` at which other pods reach this one."""
    in_flight: InFlightRequests
    catalog: ModelCatalog
    coordinator: LoadCoordinator
    processors: Processors
    remote: RemoteInference
    end_notifier: InferenceEndNotifier
    measurements: Measurements
    threads: Executor
    sandbox_threads: Executor
    """For processors that wait for the sandbox, so that no other request waits for it."""
    step_tensors: StepTensors
    server: ModelServer | None = None
    """What runs the pod's models in its place; None: it runs them itself."""

    def threads_for(self, processor: Processor) -> Executor:
        return self.sandbox_threads if processor.waits_for_sandbox else self.threads

    async def predict(
        self,
        head: RequestHead,
        protocol: WireProtocol,
        body: bytes | DecodedBody,
        *,
        encode: Encoder | None = None,
    ) -> PredictResponse:
        """Serve one request; raises PodError, RemoteRefused.

        Args:
            head: the request's headers.
            protocol: the form of `body` if it is bytes.
            body: decoded, or the bytes that were received.
            encode: makes the response body from an entry request's outputs, in a thread; None: in
                the protocol of the request.
        """
        with self.in_flight.admit(head):
            is_small = False
            if isinstance(body, bytes):
                if self._passes(head, protocol, body, encode):
                    return await self._forward(head, body)
                is_small = len(body) <= QUICK_BYTES and head.run is None
                body = await self._decode(head, protocol, body)
            if head.is_infer_stage and body.v2 is None:
                raise InvalidRequest("the inference stage takes V2 tensors, not V1 instances")
            record = self.catalog.watch.state.models.get(head.model)
            spec = None if record is None else record.serving
            if spec is None or head.generation not in (None, spec.generation):
                spec = await self.catalog.find(head.model, head.generation)
            request = PredictRequest(head, spec, self.pod_name, self.measurements, is_small)
            if head.is_infer_stage:
                return await self._serve_inference(request, body)
            if head.run is not None and encode is None and protocol is WireProtocol.V2:
                encode = self._step_encoder(request, body)
            return await self._serve_entry(request, body, encode)

    async def _decode(self, head: RequestHead, protocol: WireProtocol, body: bytes) -> DecodedBody:
        kept: Mapping[str, Tensor] = {}
        if protocol is WireProtocol.V2:
            kept = await self.step_tensors.find_inputs(head, body)
        if len(body) <= SMALL_BODY_BYTES:
            return decode_body(protocol, body, head.v2_header_length, kept)
        return await in_thread(
            self.threads, decode_body, protocol, body, head.v2_header_length, kept
        )

    def _step_encoder(self, request: PredictRequest, body: DecodedBody) -> Encoder | None:
        """Encodes a step's outputs, large ones as references; None for V1."""
        if body.v2 is None:
            return None
        loop, key = asyncio.get_running_loop(), request.spec.key

        def on_size(size_bytes: int) -> None:
            loop.call_soon_threadsafe(self.measurements.add, key, OUTPUT_BYTES, size_bytes)

        return partial(self.step_tensors.encode_outputs, request.head, body.v2, on_size)

    # Bodies that a model server gets as they are

    def _passes(
        self, head: RequestHead, protocol: WireProtocol, body: bytes, encode: Encoder | None
    ) -> bool:
        """Whether the pod's model server may answer the body itself: V2 that it understands."""
        if self.server is None or self.server.info is None or encode is not None:
            return False
        is_here = head.predict_address in {None, self.address} and not head.is_infer_stage
        needs_binary = head.v2_header_length is not None or BINARY_FLAG in body
        return (
            is_here
            and protocol is WireProtocol.V2
            and (head.run is None or REFERENCE_FLAG not in body)
            and (self.server.info.takes_binary or not needs_binary)
        )

    async def _forward(self, head: RequestHead, body: bytes) -> PredictResponse:
        spec = await self.catalog.find(head.model, head.generation)
        request = PredictRequest(head, spec, self.pod_name, self.measurements)
        headers = {"content-type": "application/json"}
        if head.v2_header_length is None:
            check_values(body)  # the server, too, parses them one by one
        else:
            headers = {"content-type": BINARY_TYPE, LENGTH_HEADER: head.v2_header_length}
        acquired = await self.acquire(head, spec, deadline_s=head.deadline_s)
        try:
            request.has(acquired)
            model = acquired.model
            if not isinstance(model, ProxiedModel):
                raise TypeError(f"{spec.key} is not a model of the model server")
            started_s = time.monotonic()
            answer = await model.forward(body, headers, deadline_s=head.deadline_s)
            seconds = time.monotonic() - started_s
            request.record(Stage.INFER, seconds, sample_s=seconds)
        finally:
            self.release(head, acquired)
        name = head.response_model_name
        if len(answer.body) <= SMALL_BODY_BYTES:
            return request.response(renamed(answer, name))
        return request.response(await in_thread(self.threads, renamed, answer, name))

    # Entry requests

    async def _serve_entry(
        self, request: PredictRequest, body: DecodedBody, encode: Encoder | None
    ) -> PredictResponse:
        head, spec = request.head, request.spec
        if head.predict_address is None or head.predict_address == self.address:
            acquired = await self.acquire(head, spec, deadline_s=head.deadline_s)
            try:
                request.has(acquired)
                model = acquired.entry.model
                processor = model.processor
                inputs = await self._preprocess(request, processor, body)
                outputs = await self._infer(request, model, inputs)
            finally:
                self.release(head, acquired)
        else:
            processor, outputs = await self._infer_remotely(request, body)
        started_s = time.monotonic()
        is_small = encode is None and sum(each.host_bytes for each in outputs) <= QUICK_BYTES
        content = await self._convert(
            processor,
            is_small,
            postprocess_body,
            processor,
            body,
            outputs,
            head.response_model_name,
            encode,
        )
        if head.simulated_work:
            await request.simulate(Stage.POSTPROCESS)
        seconds = time.monotonic() - started_s
        request.record(Stage.POSTPROCESS, seconds, sample_s=seconds)
        return request.response(content)

    async def _infer_remotely(
        self, request: PredictRequest, body: DecodedBody
    ) -> tuple[Processor, tuple[Tensor, ...]]:
        head, key = request.head, request.spec.key
        if not await self.catalog.is_pod(head.predict_address):
            raise RemotePodUnreachable(f"predict pod {head.predict_address} is not registered")
        started_s = time.monotonic()
        was_ready = self.processors.has(key)
        processor = await self.processors.get(request.spec)
        assets_s = time.monotonic() - started_s
        if not was_ready:
            self.measurements.add(key, "assets", assets_s)
        inputs = await self._preprocess(request, processor, body)
        simulated_s = await request.simulate(Stage.NETWORK)
        result = await self.remote.infer(head, inputs)
        request.predict_pod = result.pod
        request.start = result.start
        request.stages[Stage.LOAD] = assets_s + result.load_s
        request.stages[Stage.INFER] = result.infer_s
        network_s = simulated_s + result.network_s
        request.record(Stage.NETWORK, network_s, sample_s=network_s)
        return processor, result.outputs

    # The inference stage, for another pod

    async def _serve_inference(self, request: PredictRequest, body: DecodedBody) -> PredictResponse:
        inputs = body.v2.inputs if body.v2 is not None else ()
        head = request.head
        acquired = await self.acquire(head, request.spec, deadline_s=head.deadline_s)
        try:
            request.has(acquired)
            batching = acquired.model.processor.batching
            checked = await in_thread(self.threads, batching.validate, inputs)
            outputs = await self._infer(request, acquired.model, checked)
        finally:
            self.release(head, acquired)

        def encode() -> EncodedBody:
            name = request.head.response_model_name
            return encode_body(body, outputs, predictions=[], model_name=name)

        if sum(tensor.data.nbytes for tensor in outputs) <= SMALL_BODY_BYTES:
            return request.response(encode())
        return request.response(await in_thread(self.threads, encode))

    # Stages

    async def acquire(
        self, head: RequestHead, spec: ModelSpec, *, deadline_s: float | None
    ) -> AcquiredModel:
        """The model on the device, held until `release`; raises as `LoadCoordinator.acquire`."""
        store = self.coordinator.store
        entry = store.by_key.get(spec.key)
        if entry is not None and entry.model.device_model.broken_reason is None:
            store.use(entry)
            return AcquiredModel(store, entry)
        try:
            return await self.coordinator.acquire(
                spec, token=head.load_token, deadline_s=deadline_s
            )
        except BaseException:
            if head.reservation is not None:
                self.end_notifier.notify(head.reservation)
            raise

    def release(self, head: RequestHead, acquired: AcquiredModel) -> None:
        acquired.store.end_request(acquired.entry)
        if head.reservation is not None:
            self.end_notifier.notify(head.reservation)

    async def _convert(
        self,
        processor: Processor,
        is_small: bool,
        function: Callable[[*Arguments], Converted],
        *arguments: *Arguments,
    ) -> Converted:
        """The result of `function`, in a thread unless the hop there would take as long.

        Not beside other requests: they would wait, and reach the device one by one rather than
        in batches, which costs it more (`benchmarks.pod_cpu` with 16 clients).
        """
        if not (is_small and processor.is_quick and self.in_flight.is_alone):
            return await in_thread(self.threads_for(processor), function, *arguments)
        try:
            return function(*arguments)
        except Exception:
            raise
        except BaseException as error:  # a library's panic
            raise as_exception(error) from error

    async def _preprocess(
        self, request: PredictRequest, processor: Processor, body: DecodedBody
    ) -> tuple[Tensor, ...]:
        started_s = time.monotonic()
        inputs = await self._convert(processor, request.is_small, preprocess_body, processor, body)
        if request.head.simulated_work:
            await request.simulate(Stage.PREPROCESS)
        seconds = time.monotonic() - started_s
        request.record(Stage.PREPROCESS, seconds, sample_s=seconds)
        return inputs

    async def _infer(
        self, request: PredictRequest, model: ServedModel, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        head, key = request.head, request.spec.key
        try:
            result = await model.infer(
                inputs, deadline_s=head.deadline_s, due_s=head.due_s, policy=request.spec.policy
            )
        except PodError:
            raise
        except (*BAD_TENSOR_ERRORS, MemoryError) as error:
            if is_out_of_memory(error):
                raise NoRoomToInfer(
                    f"the device has no room for this inference of {key}: {error}"
                ) from error
            if head.is_infer_stage and not is_device_error(error):  # the client's own tensors
                raise InvalidRequest(f"the model refused these tensors: {error}") from error
            raise InferenceFailed(f"inference of {key} failed: {error}") from error
        infer_s = result.wait_s + result.compute_s
        if result.batch:
            request.batch = f"{result.batch};items={result.rows}"
        request.record(Stage.INFER, infer_s, sample_s=result.compute_s)
        rows = model.processor.batching.rows_of(inputs)
        share = rows / result.rows
        self.measurements.add_share(key, result.compute_s, result.compute_s * share)
        return result.value


def preprocess_body(processor: Processor, body: DecodedBody) -> tuple[Tensor, ...]:
    """The network's tensors from a body; blocks, raises InvalidRequest."""
    if body.v2 is None:
        items = processor.read_instances(body.instances)
    else:
        items = processor.read_tensors(body.v2.inputs)
    try:
        return processor.batching.validate(processor.preprocess(items))
    except (ValueError, TypeError, OSError) as error:
        raise InvalidRequest(f"the input cannot be preprocessed: {error}") from error


def postprocess_body(
    processor: Processor,
    body: DecodedBody,
    outputs: Sequence[Tensor],
    model_name: str,
    encode: Encoder | None = None,
) -> EncodedBody:
    """The response body from the network's outputs; blocks, raises InvalidRequest."""
    final = processor.postprocess(outputs)
    if encode is not None:
        return encode(final)
    predictions: list[Any] = processor.predictions(final) if body.v2 is None else []
    return encode_body(body, final, predictions=predictions, model_name=model_name)
