"""The device process's end of one front: serves its requests, and ends them if the front dies."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelName
from registry.domain.pod import Stage
from runtime.device.stepwise import Stepwise
from runtime.errors import InferenceFailed, RuntimePackageError
from runtime.fronts.channel import Channel
from runtime.fronts.messages import Kind, Message
from runtime.fronts.request_fields import head_from, lesson_fields
from runtime.loading.model_elsewhere import ModelElsewhere
from runtime.metrics import FRONT_REQUESTS, REQUESTS
from runtime.protocols.response import error_headers, error_status
from runtime.serving.predict_request import PredictRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runtime.fronts.channel import ChannelSockets
    from runtime.loading.model_store import ModelStore
    from runtime.loading.processors import Processors
    from runtime.serving.predict_service import PredictService
    from runtime.wire.tensors import Tensor

logger = logging.getLogger(__name__)

BUILD_TIMEOUT_S = 60.0
"""How long a model's small files are kept for a front that builds its processor."""


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """What serves the requests of all fronts."""

    service: PredictService
    slots: int
    """Of the whole pod."""
    store: ModelStore
    processors: Processors


class FrontLink:
    """One front, as long as its process lives. `run` owns all tasks."""

    def __init__(
        self,
        device_side: DeviceSide,
        on_connection: Callable[[socket.socket], None],
        on_ready: Callable[[], None],
    ) -> None:
        """`on_connection` gets the connections over which the front passes requests on."""
        self._device_side = device_side
        self._service = device_side.service
        self._on_connection = on_connection
        self._on_ready = on_ready
        self._inferred = FRONT_REQUESTS.labels("inferred")
        self._passed = FRONT_REQUESTS.labels("passed")
        self._closed = asyncio.Event()
        self._channel = Channel(self._receive, self._closed.set)
        self._work: dict[int, asyncio.Task[None]] = {}
        """Requests and lessons by the front's numbers."""
        self._ends: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        """What the front says at the end of a request or lesson."""
        self._tasks = asyncio.TaskGroup()
        self.is_ready = False

    async def run(self, sockets: ChannelSockets) -> None:
        """Serve until the front ends; then all of its requests have ended."""
        await self._channel.open(sockets)
        start = {"address": self._service.address, "slots": self._device_side.slots}
        self._channel.send(Kind.START, start)
        try:
            async with self._tasks:
                await self._closed.wait()
                self.is_ready = False
                for work in self._work.values():
                    work.cancel()
        finally:
            self._channel.close()

    def give(self, connection: socket.socket) -> None:
        """Hand a client's connection to the front."""
        self._channel.send(Kind.CONNECTION, {}, descriptors=(connection.detach(),))

    def close(self) -> None:
        """Have the front complete its requests, and end."""
        self.is_ready = False
        self._channel.send(Kind.CLOSE, {})

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def _receive(self, message: Message) -> None:
        fields = message.fields
        match message.kind:
            case Kind.INFER:
                self._inferred.inc()
                self._begin(fields["id"], self._infer(fields, message.tensors))
            case Kind.LEARN:
                self._begin(fields["id"], self._teach(fields))
            case Kind.END | Kind.LEARNT:
                end = self._ends.get(fields["id"])
                if end is not None and not end.done():
                    end.set_result(fields)
            case Kind.CANCEL:
                if (work := self._work.get(fields["id"])) is not None:
                    work.cancel()
            case Kind.RESPONSES:
                for stage, status, number in fields["responses"]:
                    REQUESTS.labels(stage, status).inc(number)
            case Kind.CONNECTION:
                self._passed.inc()
                self._on_connection(socket.socket(fileno=message.descriptors[0]))
            case Kind.READY:
                self.is_ready = True
                self._on_ready()
            case other:
                logger.error("a front sent a message of another kind", extra={"kind": other})

    def _begin(self, number: int, work: Any) -> None:
        task = self._tasks.create_task(work)
        self._work[number] = task
        task.add_done_callback(lambda _: self._work.pop(number, None))

    # Requests

    async def _infer(self, fields: Mapping[str, Any], inputs: tuple[Tensor, ...]) -> None:
        number = fields["id"]
        try:
            await self._serve(number, fields, inputs)
        except RuntimePackageError as error:
            self._refuse(number, error)
        except Exception as error:
            logger.exception("request of a front failed with an unexpected error")
            self._refuse(number, InferenceFailed(repr(error)))

    async def _serve(
        self, number: int, fields: Mapping[str, Any], inputs: tuple[Tensor, ...]
    ) -> None:
        service, head = self._service, head_from(fields)
        spec = await service.catalog.find(head.model, head.generation)
        if spec.key != fields["key"]:
            self._channel.send(Kind.STALE, {"id": number})
            return
        async with service.in_flight.admit(head):
            request = PredictRequest(head, spec, service.pod_name, service.measurements)
            _record(request, Stage.PREPROCESS, fields["preprocess_s"])
            outputs = await service.infer_prepared(request, inputs)
            stages = {stage.value: seconds for stage, seconds in request.stages.items()}
            reply = {
                "id": number, "start": request.start, "stages": stages, "batch": request.batch
            }  # fmt: skip
            self._channel.send(Kind.OUTPUTS, reply, outputs)
            end = await self._end_of(number)
            if end["postprocess_s"] is not None:
                _record(request, Stage.POSTPROCESS, end["postprocess_s"])

    def _refuse(self, number: int, error: RuntimePackageError) -> None:
        fields = {
            "id": number, "status": error_status(error), "message": str(error),
            "headers": dict(error_headers(error)),
        }  # fmt: skip
        self._channel.send(Kind.REFUSED, fields)

    async def _end_of(self, number: int) -> Mapping[str, Any]:
        end: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._ends[number] = end
        try:
            return await end
        finally:
            del self._ends[number]

    # Lessons: the small files of a model on the device

    async def _teach(self, fields: Mapping[str, Any]) -> None:
        number = fields["id"]
        try:
            async with asyncio.timeout(BUILD_TIMEOUT_S):
                await self._lend_files(number, fields["model"], fields["generation"])
        except TimeoutError:
            logger.warning("a front took too long to build a processor", extra=dict(fields))
        except (RuntimePackageError, OSError) as error:
            logger.info("a front cannot serve a model", extra={**fields, "error": error})
            self._channel.send(Kind.LESSON, lesson_fields(number))
        except Exception:
            logger.exception("a front's question failed with an unexpected error")
            self._channel.send(Kind.LESSON, lesson_fields(number))

    async def _lend_files(self, number: int, segment: str, generation: str | None) -> None:
        name = ModelName.from_path_segment(segment)
        spec = await self._service.catalog.find(name, generation)
        if not self._is_for_fronts(spec.key):
            self._channel.send(Kind.LESSON, lesson_fields(number))
            return
        async with self._device_side.processors.files(spec) as files:
            self._channel.send(Kind.LESSON, lesson_fields(number, spec.key, files))
            await self._end_of(number)

    def _is_for_fronts(self, key: str) -> bool:
        """Whether the model is on the device, and its stages but inference can run elsewhere."""
        entry = self._device_side.store.by_key.get(key)
        if entry is None or isinstance(entry.model, ModelElsewhere):
            return False
        processor = entry.model.processor
        return not (processor.waits_for_sandbox or isinstance(processor, Stepwise))


def _record(request: PredictRequest, stage: Stage, seconds: float) -> None:
    request.record(stage, seconds, sample_s=seconds)
