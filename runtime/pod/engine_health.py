"""Watches the pod's model server: while it is away the pod has no lease and no models.

When it is back, the pod registers again and loads the models that it had.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

from common.inference_protocol import PodError
from registry.domain.model import ModelSpec
from registry.domain.pod_state import ANY_COPIES
from runtime.engines.server_engine import ModelServer
from runtime.engines.server_process import ServerProcess
from runtime.errors import LoadFailed, ServerUnavailable
from runtime.metrics import SERVER_UP
from runtime.pod.model_sync import ModelParts
from runtime.threads import in_thread

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
FAST_INTERVAL_S: Final = 0.2
"""While it is away."""
HUNG_PROBES: Final = 3
"""Liveness calls without an answer, in a row, after which it counts as hung."""
KILL_AFTER_S: Final = 30.0
"""Time of a hang after which a server that the pod started is ended."""


class ServerWatch:
    def __init__(
        self,
        server: ModelServer,
        process: ServerProcess | None,
        parts: ModelParts,
        threads: Executor,
    ) -> None:
        self._server = server
        self._process = process
        self._parts = parts
        self._threads = threads
        self._wake = asyncio.Event()
        self._hung_since_s: float | None = None
        self._unanswered = 0
        self._said = ""
        self._lost: dict[str, ModelSpec] = {}
        server.on_suspect = self._wake.set
        server.on_model_lost = self._model_lost

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._process is not None:
                tasks.create_task(self._process.run())
            while True:
                self._wake.clear()
                if await self._is_live():
                    if not self._server.is_up:
                        await self._came_up()
                    for spec in self._take_lost():
                        tasks.create_task(self._reload(spec))
                elif self._server.is_up:
                    self._went_down()
                await self._wait()

    async def _wait(self) -> None:
        pause_s = INTERVAL_S if self._server.is_up else FAST_INTERVAL_S
        waits = [self._wake.wait()]
        if self._process is not None and self._server.is_up:
            waits.append(self._process.ended.wait())
        pending = [asyncio.ensure_future(each) for each in waits]
        try:
            await asyncio.wait(pending, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _is_live(self) -> bool:
        """Whether the server answers; one that hangs is up until it has hung for some calls."""
        if self._process is not None and self._process.ended.is_set():
            self._process.ended.clear()
            return False  # its models are gone, even if another one answers by now
        try:
            problem = await self._server.client.problem()
        except TimeoutError:
            return self._hangs()
        self._unanswered, self._hung_since_s = 0, None
        if problem and not self._server.is_up:
            self._say(problem)
        return not problem

    def _hangs(self) -> bool:
        """Whether it counts as live although it does not answer: it may be at a call of ours."""
        now_s = asyncio.get_running_loop().time()
        self._unanswered += 1
        self._hung_since_s = self._hung_since_s or now_s
        hung_s = now_s - self._hung_since_s
        limit_s = self._server.busy_limit_s
        if self._process is not None and hung_s > max(KILL_AFTER_S, limit_s):
            self._hung_since_s = None
            self._process.end_hung()
        return self._server.is_up and (self._unanswered < HUNG_PROBES or hung_s < limit_s)

    async def _came_up(self) -> None:
        """Read what the server is; one that speaks no V2 stays away, and the log says why."""
        try:
            info = await in_thread(self._threads, self._server.client.info)
        except (LoadFailed, ServerUnavailable) as error:
            self._say(str(error))
            return
        self._said = ""
        self._server.info, self._server.is_up = info, True
        SERVER_UP.set(1)
        self._parts.agent.release()
        logger.info(
            "model server up",
            extra={"url": self._server.client.url, "server": info.name, "version": info.version},
        )

    def _say(self, problem: str) -> None:
        """Log a problem once, not each time it is found."""
        if problem != self._said:
            self._said = problem
            logger.warning("no model server yet", extra={"problem": problem})

    def _went_down(self) -> None:
        store = self._parts.store
        self._server.is_up = False
        SERVER_UP.set(0)
        self._parts.agent.hold()
        logger.error(
            "model server away", extra={"url": self._server.client.url, "models": len(store.by_key)}
        )
        for key in tuple(store.by_key):
            self._model_lost(key)

    def _model_lost(self, key: str) -> None:
        """Take a model off the device, and load it again once the server is up."""
        entry = self._parts.store.by_key.get(key)
        if entry is None or entry.retire_reason is not None:
            return
        self._lost[key] = entry.model.spec
        self._parts.store.retire(key, "server-lost")
        self._wake.set()

    def _take_lost(self) -> list[ModelSpec]:
        """The lost models that are off the device by now, and still declared."""
        declared = self._parts.watch.state.declared_keys()
        found = [
            spec
            for key, spec in self._lost.items()
            if self._server.is_up and not self._parts.store.holds(key)
        ]
        for spec in found:
            del self._lost[spec.key]
        return [spec for spec in found if spec.key in declared]

    async def _reload(self, spec: ModelSpec) -> None:
        with suppress(PodError):  # counted and logged as each load; requests try again
            await self._parts.coordinator.preload(spec, ANY_COPIES)
