"""Settings of the platform on one machine. The flags of `pilotlight up` fill them.

Flags, environment variables and defaults are declared together in `commands.options`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pilotlight.state_dir import StateDir


@dataclass(frozen=True, slots=True)
class LocalPodSettings:
    """What every pod gets; each has a name, a node and a cache folder of its own besides."""

    slots: int = 1
    """Requests a pod serves at a time, from preprocessing to the end of postprocessing."""
    memory_bytes: int = 4 * 2**30
    """Budget for models on the device; raise it when one pod should hold more models."""
    link_bytes_per_s: float | None = None
    """Rate of a pod's link to object storage; None: as fast as it goes. For experiments."""
    threads: int = 1
    """Threads per pod; more than cores divided by pods slows all of them down."""
    allow_simulated_work: bool = False
    """Honour `x-pilotlight-simulate`; for experiments only."""
    retire_grace_s: float = 5.0
    """How long a deleted model's files stay, in case it comes back."""


@dataclass(frozen=True, slots=True)
class AutoscalerChoice:
    """How the platform's autoscaler plans. Times in seconds."""

    loading: str = "predictive"
    """Loading policy."""
    min_pods: int | None = None
    """Fewest pods, 0 for none while nobody asks; None: the number of pods stays as it is."""
    pod_idle_s: float = 120.0
    """How long the last pod stays after the last request."""
    pod_stable_s: float = 60.0
    """How long fewer pods must be enough before one goes."""
    loading_value: float | None = None
    """The loading policy's parameter, as `--loading-value` of the autoscaler; None: its own."""
    pace: float = 1.0
    """Seconds of policies and forecasts in one of the clock's; for experiments only."""
    forecast_every_s: float = 2.0
    """Time between two forecasts."""


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    """One platform on one machine."""

    home: StateDir
    objects: Path
    """Folder the object store serves; a folder in it is a bucket."""
    pods: int = 8
    pod: LocalPodSettings = LocalPodSettings()
    host: str = "127.0.0.1"
    """Address the gateway listens on; everything else stays on loopback."""
    port: int = 8080
    """Port of the gateway; 0 takes a free one."""
    redis_url: str | None = None
    """A Redis of your own; None starts the embedded one."""
    s3: bool = True
    """Start the object store and point the pods at it; off where AWS_* name another."""
    pool: str = "default"
    autoscaler: AutoscalerChoice | None = None
    """What plans ahead; None: nothing does, requests alone load models."""
    lease_ttl_s: float = 3.0
    """How long a pod that went silent counts as alive."""
    stop_grace_s: float = 10.0
    """How long requests in flight may take when the platform stops."""

    def to_json(self) -> str:
        """The settings as one line, for the supervisor process of a detached platform."""
        values = asdict(self)
        return json.dumps({**values, "home": str(self.home.root), "objects": str(self.objects)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings that `to_json` wrote."""
        values = json.loads(text)
        return cls(
            **{
                **values,
                "home": StateDir(Path(values["home"])),
                "objects": Path(values["objects"]),
                "pod": LocalPodSettings(**values["pod"]),
                "autoscaler": values["autoscaler"] and AutoscalerChoice(**values["autoscaler"]),
            }
        )
