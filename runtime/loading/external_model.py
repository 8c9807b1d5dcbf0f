"""Models that another process infers, without the device's queue.

The pod's model server takes several requests at once, which the pod's slots bound. An estimator
of scikit-learn infers in its namespace's process, so one that hangs holds up no model but those of
its own process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import orjson

from common.http_client import Response, StreamedResponse
from common.http_connection import HttpError, NotConnected
from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import (
    LENGTH_HEADER,
    EncodedBody,
    decode_outputs,
    encode_request,
)
from common.inference_protocol.encodings import to_json
from common.inference_protocol.tensors import Tensor
from registry.domain.model import ModelPolicy, ModelSpec, Task
from runtime.device.queue import InferenceResult, ModelInputs
from runtime.device.worker import DeviceWorker
from runtime.engines.engine_processes import HEADERS
from runtime.engines.process_engine import EngineModel, ProcessEngines
from runtime.engines.server_engine import ModelServer, ServerModel
from runtime.engines.server_process import error_of
from runtime.errors import InferenceFailed, InferenceHung, ServerLost, ServerUnavailable
from runtime.loading.model_store import ServedModel
from runtime.sandbox.estimators import Estimators, LoadedEstimator
from runtime.tasks.engine_task import EngineTask
from runtime.tasks.task import Processor

JSON: Final = "application/json"


Loaded = TypeVar("Loaded", ServerModel, EngineModel, LoadedEstimator)
Owner = TypeVar("Owner", ModelServer, ProcessEngines, Estimators)


class ModelElsewhere(ServedModel, Generic[Loaded, Owner]):
    def __init__(
        self,
        spec: ModelSpec,
        *,
        processor: Processor,
        network: Loaded,
        device: DeviceWorker,
        owner: Owner,
    ) -> None:
        """`network`: as its process has it; `owner`: of that process."""
        super().__init__(spec, processor=processor, network=network, device=device)
        self.loaded: Loaded = network
        self.owner: Owner = owner

    async def warm_up(self) -> None:
        """Nothing: the process has said that it has the model, and no request's data is known."""

    def _limit_s(self, deadline_s: float | None = None) -> float:
        """Time limit of an inference that must have ended by the deadline."""
        limit_s = self.device_model.policy.max_infer_s or self._device.timeout_s
        if deadline_s is None:
            return limit_s
        return min(limit_s, max(0.0, deadline_s - time.monotonic()))


class ProxiedModel(ModelElsewhere[ServerModel, ModelServer]):
    """Of the pod's model server."""

    async def infer(
        self,
        inputs: tuple[Tensor, ...],
        *,
        deadline_s: float | None = None,
        due_s: float | None = None,
        policy: ModelPolicy | None = None,
    ) -> InferenceResult[tuple[Tensor, ...]]:
        """The server's outputs; raises ServerUnavailable, ServerLost, InferenceHung.

        Raises InvalidRequest for tensors that the server refuses, InferenceFailed where it fails.
        `due_s` changes nothing: the server has a queue of its own.
        """
        self.device_model.policy = policy or self.device_model.policy
        takes_binary = self.owner.info is not None and self.owner.info.takes_binary
        body = encode_request(inputs) if takes_binary else _json_request(inputs)
        begun_s = time.monotonic()
        response = await self.forward(body.content, dict(body.headers), deadline_s=deadline_s)
        try:
            outputs = decode_outputs(response.body, response.headers.get(LENGTH_HEADER))
        except InvalidRequest as error:
            raise InferenceFailed(f"the model server's response has no tensors: {error}") from error
        return InferenceResult(outputs, 0.0, time.monotonic() - begun_s)

    async def forward(
        self, content: bytes, headers: Mapping[str, str], *, deadline_s: float | None
    ) -> Response:
        """The server's response to a V2 body as it is; raises as `infer` does."""
        limit_s = self._limit_s(deadline_s)
        try:
            with self.owner.inferring(limit_s):
                async with asyncio.timeout(limit_s):
                    return await self.owner.client.infer(self.loaded.name, content, headers)
        except TimeoutError as error:
            self.owner.on_suspect()
            raise InferenceHung(
                f"the model server did not end an inference of {self.spec.key} within {limit_s:g} s"
            ) from error
        except (ServerUnavailable, ServerLost):
            self.owner.on_suspect()
            raise
        except (InvalidRequest, InferenceFailed) as error:
            await self._check_known(error)
            raise

    async def _check_known(self, error: Exception) -> None:
        """Raise ServerUnavailable if the server refused since it no longer has the model."""
        if await self.owner.client.knows(self.loaded.name):
            return
        self.owner.on_model_lost(self.spec.key)
        raise ServerUnavailable(
            f"the model server has lost {self.spec.key}, which is loaded again: {error}"
        ) from error


class EngineServed(ModelElsewhere[EngineModel, ProcessEngines]):
    """Of an engine in a process of its own, which batches by itself."""

    loads_by_size = False

    async def infer(
        self,
        inputs: tuple[Tensor, ...],
        *,
        deadline_s: float | None = None,
        due_s: float | None = None,
        policy: ModelPolicy | None = None,
    ) -> InferenceResult[tuple[Tensor, ...]]:
        """The texts that follow others; raises ServerUnavailable, ServerLost, InferenceHung.

        `due_s` changes nothing: the engine has a queue of its own.
        """
        self.device_model.policy = policy or self.device_model.policy
        begun_s = time.monotonic()
        task = self.processor
        if not isinstance(task, EngineTask):
            raise TypeError(f"{self.spec.key} has the processor of another engine")
        body = orjson.dumps(task.completion(self.loaded.names[0], inputs))
        limit_s = self._limit_s(deadline_s)
        try:
            async with (
                asyncio.timeout(limit_s),
                self.stream("/v1/completions", body, "") as response,
            ):
                answer = Response(response.status, response.headers, await response.read())
        except TimeoutError as error:
            raise InferenceHung(
                f"the engine of {self.spec.key} did not answer within {limit_s:g} s"
            ) from error
        if not answer.is_success:
            raise error_of(answer, "the engine")
        return InferenceResult(task.texts(answer.json()), 0.0, time.monotonic() - begun_s)

    @asynccontextmanager
    async def stream(
        self, path: str, body: bytes, request_id: str
    ) -> AsyncIterator[StreamedResponse]:
        """The engine's response as it comes; leaving the block ends the request in the engine.

        Raises InvalidRequest, ServerUnavailable where nothing was sent, ServerLost.
        """
        engine = self.loaded.process
        if self.spec.task is Task.TEXT_EMBEDDING and path != "/v1/embeddings":
            raise InvalidRequest(f"model {self.spec.name} embeds texts: use /openai/v1/embeddings")
        headers = {**HEADERS, "x-request-id": request_id} if request_id else HEADERS
        try:
            async with self.owner.processes.client.stream(
                "POST", f"unix:{engine.socket}", path, headers, body
            ) as response:
                yield response
        except HttpError as error:
            await self.owner.processes.wait_ended(engine)
            if isinstance(error, NotConnected):
                raise ServerUnavailable(f"the engine of {self.spec.key} has ended") from error
            raise ServerLost(
                f"the engine of {self.spec.key} ended in this request: {error}"
            ) from error


def _json_request(inputs: tuple[Tensor, ...]) -> EncodedBody:
    entries = []
    for tensor in inputs:
        if (data := to_json(tensor)) is None:
            raise InvalidRequest(
                f"input {tensor.name!r} is {tensor.datatype} with values that JSON cannot hold, and"
                " the model server does not take binary tensors"
            )
        described = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        entries.append({**described, "data": data})
    return EncodedBody(orjson.dumps({"inputs": entries}), (("content-type", JSON),))


def renamed(response: Response, name: str) -> EncodedBody:
    """The response with the client's name of the model; raises InferenceFailed."""
    content, length = response.body, response.headers.get(LENGTH_HEADER)
    try:
        end = len(content) if length is None else int(length)
        document = orjson.loads(content[:end])
        head = orjson.dumps({**document, "model_name": name})
    except (ValueError, TypeError) as error:
        raise InferenceFailed(f"the model server's response is no V2: {error}") from error
    kind = response.headers.get("content-type", JSON)
    headers = [("content-type", kind)]
    if length is not None:
        headers.append((LENGTH_HEADER, str(len(head))))
    return EncodedBody(head + content[end:], tuple(headers))


class SandboxedModel(ModelElsewhere[LoadedEstimator, Estimators]):
    """An estimator of scikit-learn."""

    async def infer(
        self,
        inputs: tuple[Tensor, ...],
        *,
        deadline_s: float | None = None,
        due_s: float | None = None,
        policy: ModelPolicy | None = None,
    ) -> InferenceResult[tuple[Tensor, ...]]:
        """The outputs of checked inputs, alone; raises as `Estimators.infer` does.

        `due_s` changes nothing: its process takes requests in the order of their arrival.
        """
        self.device_model.policy = policy or self.device_model.policy
        begun_s = time.monotonic()
        outputs = await self.owner.infer(
            self.loaded, inputs, limit_s=self._limit_s(), deadline_s=deadline_s
        )
        rows = self.processor.batching.rows_of(inputs)
        if not outputs or any(tensor.shape[:1] != (rows,) for tensor in outputs):
            shapes = [list(tensor.shape) for tensor in outputs]
            raise InferenceFailed(f"the model gave outputs of shape {shapes} for {rows} rows")
        return InferenceResult(outputs, 0.0, time.monotonic() - begun_s)

    def infer_together(self, requests: Sequence[ModelInputs]) -> list[tuple[Tensor, ...]]:
        raise InvalidRequest(
            "a model of scikit-learn cannot be profiled, since each request runs alone: convert it"
            " to ONNX"
        )
