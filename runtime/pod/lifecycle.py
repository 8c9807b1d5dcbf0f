"""The process of a pod, from its settings to its exit status: what stands around `Pod`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Final

import torch
import uvloop

from common.process import configure_logs, on_stop_signals
from runtime.device.accelerator import mps_share
from runtime.device.memory import open_device
from runtime.engines.engine_adapter import missing_programs
from runtime.engines.server_engine import ModelServer, ServerRepository
from runtime.engines.server_process import ServerMemory, ServerProcess, V2Client
from runtime.errors import LoadFailed, NoDevice
from runtime.pod.pod import Opened, Pod
from runtime.pod_process import write_termination_message
from runtime.protocols.servers import CLOSE_TIMEOUT_S, listen
from runtime.sandbox.sandbox_processes import fork_server
from runtime.settings import RuntimeSettings

logger = logging.getLogger(__name__)

RESTART: Final = -1
"""In place of an exit status: the process is to start anew."""
FORCED_EXIT_DELAY_S = CLOSE_TIMEOUT_S + 3.0
"""Time from the end of the drain to the forced exit of a process that hangs."""
_QUIET_LIBRARIES = (
    "httpx", "httpcore", "botocore", "boto3", "urllib3", "transformers", "kserve", "uvicorn",
)  # fmt: skip


def run_pod(settings: RuntimeSettings) -> int:
    """Run a pod until SIGTERM or SIGINT; returns its exit status, or RESTART."""
    sandbox = fork_server()  # before any thread, torch operation or socket
    _configure_logs(settings)
    torch.set_num_threads(settings.threads)
    server = process = None
    try:
        memory = open_device(settings.device, mps_share(os.environ))
        if settings.has_server:
            server, process = _open_server(settings)
        if problems := missing_programs(settings.engine_python, settings.llama_server):
            raise LoadFailed("; ".join(problems))
    except (NoDevice, LoadFailed) as error:
        logger.error("the pod cannot start", extra={"error": error})
        write_termination_message(str(error))
        return os.EX_CONFIG
    listener = listen(settings.host, settings.port)
    opened = Opened(settings, sandbox, listener, memory, server, process)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        restarts = runner.run(_run(opened))
    return RESTART if restarts else 0


async def _run(opened: Opened) -> bool:
    """Whether the pod has ended in order to start anew."""
    drain_s = opened.settings.drain_timeout
    pod = Pod(opened, on_drain=lambda: _schedule_forced_exit(drain_s + FORCED_EXIT_DELAY_S))
    with on_stop_signals(lambda _: pod.end()):
        await pod.run()
    return pod.restarts


def _schedule_forced_exit(delay_s: float) -> None:
    """Exit even if an inference or a download hangs, which nothing can cancel."""
    timer = threading.Timer(delay_s, os._exit, (os.EX_TEMPFAIL,))
    timer.daemon = True
    timer.start()


def _open_server(settings: RuntimeSettings) -> tuple[ModelServer, ServerProcess | None]:
    """The pod's model server, not yet started, and the process of one that the pod starts itself.

    Raises LoadFailed if the server's repository cannot be used. Blocks.
    """
    repository = ServerRepository(settings.repository_path)
    repository.open(f"pod {settings.name}")
    process = None
    if settings.engine_command:
        log_file = Path(settings.log_file) if settings.log_file else None
        process = ServerProcess(
            settings.engine_command,
            settings.repository_path,
            log_file and log_file.with_name(f"{log_file.stem}-server.log"),
        )
    url = settings.engine_url if process is None else process.url
    metrics = settings.engine_metrics
    memory = ServerMemory(
        metrics if process is None else process.with_values(metrics),
        process_id=lambda: None if process is None else process.pid,
    )
    client = V2Client(url, load_timeout_s=settings.engine_load_timeout)
    server = ModelServer(client, repository, memory, load_timeout_s=settings.engine_load_timeout)
    return server, process


def _configure_logs(settings: RuntimeSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    line_format = f"%(asctime)s %(levelname)s {settings.name} %(name)s: %(message)s"
    configure_logs(handler, settings.log_level, line_format=line_format, libraries=_QUIET_LIBRARIES)
