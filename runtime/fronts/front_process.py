"""One front process: an HTTP server for the connections that the device process deals out to it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import torch
import uvloop

from registry.pod_secret import PodSecret
from registry.tls import PartTls
from runtime.fronts.channel import ChannelSockets
from runtime.fronts.device_link import DeviceLink
from runtime.fronts.front_routes import FrontContext, front_routes
from runtime.fronts.learnt_models import LearntModels
from runtime.fronts.passing import Passing
from runtime.protocols.direct_routes import DirectRoutes
from runtime.protocols.secret_check import SecretCheck
from runtime.protocols.server import QuietServer
from runtime.request_threads import RequestThreads

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from starlette.types import ASGIApp

    from runtime.settings import RuntimeSettings

logger = logging.getLogger(__name__)

THREADS: Final = 2
"""For bodies whose decoding and tokenising would hold up others."""
POLL_INTERVAL_S: Final = 1.0
"""Between looks whether all threads hang."""
_OOM_SCORE: Final = "500"
"""When memory runs out the kernel ends a front before the device process."""


def run_front(
    stream: socket.socket,
    descriptors: socket.socket,
    *,
    settings: RuntimeSettings,
    configure_logs: Callable[[], None],
) -> NoReturn:
    """Serve until the device process says so or ends."""
    status = 1
    try:
        configure_logs()
        torch.set_num_threads(1)
        gc.freeze()  # collections would copy the pages that all processes of the pod share
        _be_killed_first()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_Front(settings).run(ChannelSockets(stream, descriptors)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _be_killed_first() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    except OSError as error:
        logger.info("the front keeps the pod's score of out-of-memory", extra={"error": error})


class _Front:
    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._threads = RequestThreads(THREADS, settings.inference_timeout)

    async def run(self, sockets: ChannelSockets) -> None:
        settings = self._settings
        secret, tls = PodSecret(settings.pod_secret_file), PartTls(settings.tls_dir)
        async with asyncio.TaskGroup() as tasks:

            def adopt(connection: socket.socket) -> None:
                tasks.create_task(self._adopt(connection))

            def close() -> None:
                self._server.should_exit = True

            link = DeviceLink(on_connection=adopt, on_close=close, on_lost=_end_at_once)
            models = LearntModels(link, self._threads, tasks)
            context = FrontContext(settings, link, models, self._threads, Passing(link))
            self._server = QuietServer(_application(context, secret), tls)
            background = [
                tasks.create_task(work())
                for work in (
                    secret.reload_periodically,
                    tls.reload_periodically,
                    link.report_responses,
                    self._end_if_stuck,
                )
            ]
            serving = tasks.create_task(self._server.serve(sockets=[]))
            await link.open(sockets)
            await serving
            link.send_responses()
            for work in background:
                work.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _adopt(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self._server.adopt(connection)
        except (OSError, RuntimeError) as error:  # such as a handshake of another protocol
            logger.debug("a connection was not served", extra={"error": error})
            connection.close()

    async def _end_if_stuck(self) -> None:
        """End a front whose threads all hang, for another one to take its place."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            if self._threads.are_stuck:
                logger.error("all threads of a front hang: it ends")
                os._exit(os.EX_TEMPFAIL)


def _application(context: FrontContext, secret: PodSecret) -> ASGIApp:
    app: ASGIApp = DirectRoutes(context.passing, front_routes(context))
    return SecretCheck(app, secret) if secret.is_required else app


def _end_at_once() -> None:
    """The device process has ended, or sees this process as ended."""
    os._exit(os.EX_UNAVAILABLE)
