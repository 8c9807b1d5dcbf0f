"""The model server of a pod, by its settings: client, repository, memory and process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.engines.model_server.server_engine import ModelServer
from runtime.engines.model_server.server_memory import ServerMemory
from runtime.engines.model_server.server_process import ServerProcess
from runtime.engines.model_server.server_repository import ServerRepository
from runtime.engines.model_server.v2_client import V2Client

if TYPE_CHECKING:
    from runtime.settings import RuntimeSettings


@dataclass(frozen=True, slots=True)
class OpenedServer:
    server: ModelServer
    process: ServerProcess | None
    """Of a server that the pod starts itself."""


def open_server(settings: RuntimeSettings) -> OpenedServer | None:
    """The server with its repository, not yet started; None in a pod without one.

    Raises LoadFailed if the repository cannot be used. Blocks.
    """
    if not settings.has_server:
        return None
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
        url,
        metrics_url=metrics if process is None else process.with_values(metrics),
        process_id=lambda: None if process is None else process.process_id,
    )
    client = V2Client(url, load_timeout_s=settings.engine_load_timeout)
    server = ModelServer(client, repository, memory, load_timeout_s=settings.engine_load_timeout)
    return OpenedServer(server, process)
