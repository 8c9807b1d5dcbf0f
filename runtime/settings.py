"""The settings of one pod: one table drives the flag, the environment variable and the default."""

from __future__ import annotations

import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from registry import configuration
from registry.configuration import option, positive_seconds, redis_url, truth, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Everything a pod is told when it starts. Times in seconds, sizes in bytes."""

    name: str = option("", str, "name of the pod, unique in its pool", is_required=True)
    redis_url: str = option("redis://127.0.0.1:6379/0", redis_url, "the registry")
    host: str = option("127.0.0.1", str, "address to listen on; 0.0.0.0 in a container")
    port: int = option(0, whole(0), "port to listen on; 0 takes a free one")
    advertise: str = option("", str, "host that others reach this pod at, where it is not `host`")
    pool: str = option("default", str, "pool of pods that serve the same models")
    node: str = option("", str, "node the pod runs on; empty: the host name")
    slots: int = option(1, whole(1), "requests served at once by this pod as entry pod")
    memory_bytes: int = option(2 * GIB, whole(1), "budget for models on the device")
    cache_dir: str = option("", str, "folder for model files; empty: one in the temporary folder")
    link_rate: int = option(0, whole(0), "bytes per second that all downloads share; 0: no limit")
    threads: int = option(1, whole(1), "threads of one inference")
    allow_simulated_work: bool = option(
        False, truth, "honour x-pilotlight-simulate; for experiments only"
    )
    max_body_bytes: int = option(64 * MIB, whole(1), "longest request body")
    lease_ttl: float = option(3.0, positive_seconds, "life of the lease; 3 heartbeats or more")
    heartbeat: float = option(1.0, positive_seconds, "time between heartbeats")
    drain_timeout: float = option(
        30.0, positive_seconds, "how long requests in flight may take after SIGTERM"
    )
    retire_grace: float = option(
        5.0, positive_seconds, "how long a model is absent before its files are deleted"
    )
    device_queue: int = option(1024, whole(1), "inferences that may wait for the device")
    log_file: str = option("", str, "file for log lines; empty: standard error")
    log_level: str = option("INFO", str, "least level that is logged")

    @property
    def cache_path(self) -> Path:
        """The folder for model files."""
        default = Path(tempfile.gettempdir()) / "pilotlight-cache" / self.name
        return Path(self.cache_dir) if self.cache_dir else default

    @property
    def node_name(self) -> str:
        """The node's name."""
        return self.node or socket.gethostname()


def environment_name(field_name: str) -> str:
    """The environment variable of a setting; `name` alone is `PILOTLIGHT_POD_NAME`."""
    return "PILOTLIGHT_POD_NAME" if field_name == "name" else f"PILOTLIGHT_{field_name.upper()}"


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> PodSettings:
    """Settings from flags over environment over defaults; exits with status 2 on mistakes."""
    return configuration.read_settings(
        PodSettings, arguments, environment, prog="python -m runtime", variable=environment_name
    )


def settings_from_fields(values: Mapping[str, object]) -> PodSettings:
    """Settings from keyword fields; raises ValueError naming all mistakes together."""
    return configuration.settings_from_fields(PodSettings, values, variable=environment_name)
