"""Settings of the platform on one machine, which the flags of `pilotlight up` fill.

Those of its processes are by the names, and with the defaults, of their own tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pilotlight.state_dir import StateDir

POD_MEMORY_BYTES: Final = 4 * 2**30
"""Device memory for models of each pod, unless its settings say otherwise."""


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    state_dir: StateDir
    objects: Path
    """Folder the object store serves; each folder in it is a bucket."""
    pods: int = 8
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Of each pod, by the names of the runtime's settings: those that are not as there."""
    host: str = "127.0.0.1"
    """Address the gateway listens on; all other processes listen on loopback."""
    port: int = 8080
    """Port of the gateway; 0 takes a free one."""
    grpc_port: int = 0
    """Port of the gateway's gRPC; 0: none."""
    gateway: Mapping[str, Any] = field(default_factory=dict)
    """By the names of the gateway's settings: who may send requests, which Hosts are models'."""
    redis_url: str | None = None
    """Redis to use as registry; None: start an embedded one."""
    keeps_declared: bool = False
    """Models declared in the embedded Redis are declared again at the next start."""
    s3: bool = True
    """Start an object store for the pods; False: the variables AWS_* name another."""
    pool: str = "default"
    autoscaler: Mapping[str, Any] | None = None
    """By the names of the autoscaler's settings; without `min_pods` the number of pods is fixed.
    None: no autoscaler runs, and only requests load models."""
    scheduling: str = "speculative"
    """Where steps of workflows run, unless a request says so."""
    mps: bool = False
    """Start NVIDIA's MPS daemon, so that pods on one GPU compute at the same time."""
    lease_ttl_s: float = 3.0
    """How long a pod counts as alive after its last heartbeat."""
    stop_grace_s: float = 10.0
    """How long requests in flight may take while the platform stops."""

    @property
    def threads(self) -> int:
        """CPU threads of an inference; more than cores divided by pods slows all pods down."""
        return int(self.pod.get("threads", 1))
