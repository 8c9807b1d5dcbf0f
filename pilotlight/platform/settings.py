"""Settings of the platform on one machine, which the flags of `pilotlight up` fill."""

from dataclasses import dataclass
from pathlib import Path

from pilotlight.state_dir import StateDir


@dataclass(frozen=True, slots=True)
class LocalPodSettings:
    """Those of the runtime's settings that are the same for every pod, under their names there."""

    slots: int = 0
    """Concurrent requests per pod, from preprocessing to the end of postprocessing; 0: the
    runtime's default, by device and profiles."""
    memory_bytes: int = 4 * 2**30
    """Device memory for models; raise it if one pod should hold more models."""
    disk_bytes: int = 0
    """Disk for the model files of each pod's node; 0: four fifths of what is free."""
    link_rate: int = 0
    """Limit of a pod's download rate from object storage, in bytes/s; 0: none. For experiments."""
    threads: int = 1
    """CPU threads per pod; more than cores divided by pods slows all pods down."""
    allow_simulated_work: bool = False
    """Honour `x-pilotlight-simulate`; for experiments only."""
    retire_grace: float = 5.0
    """Seconds for which a deleted model's files are kept, in case it is created again."""
    namespaces: str = ""
    storage_prefixes: str = ""
    quotas: str = ""
    """What namespaces may use, see `registry.inference_service.tenant_rules`; empty: everything."""
    allow_pickle: bool = False
    """Serve scikit-learn's pickles, in processes of their own."""
    engine_url: str = ""
    engine_command: str = ""
    engine_repository: str = ""
    engine_metrics: str = ""
    """The model server of each pod, as in `runtime.settings`; empty: none."""


@dataclass(frozen=True, slots=True)
class LocalAutoscalerSettings:
    """Flags of the platform's autoscaler. Times in seconds."""

    loading: str = "predictive"
    """Loading policy."""
    min_pods: int | None = None
    """Minimum of pods, 0 to scale to zero; None: the number of pods is fixed."""
    pod_idle_s: float = 120.0
    """How long the last pod runs after the last request."""
    pod_stable_s: float = 60.0
    """How long fewer pods must suffice before a pod stops."""
    loading_value: float | None = None
    """Parameter of the loading policy; None: its default."""
    pace: float = 1.0
    """Seconds of policies and forecasts per second of the clock; for experiments only."""
    placement: str = "off"
    """Planner of placements."""


@dataclass(frozen=True, slots=True)
class LocalAccessSettings:
    """Who may send requests to the gateway, and which Hosts are models'."""

    api_keys: str = ""
    """Folder with a file of keys for each namespace; empty: no key is needed."""
    token_issuers: str = ""
    """Folder with a file of trusted issuers for each namespace; empty: tokens are not read."""
    ingress_domain: str = ""
    """Domain of models' Hosts; empty: every domain may be theirs."""


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    state_dir: StateDir
    objects: Path
    """Folder the object store serves; each folder in it is a bucket."""
    pods: int = 8
    pod: LocalPodSettings = LocalPodSettings()
    host: str = "127.0.0.1"
    """Address the gateway listens on; all other processes listen on loopback."""
    port: int = 8080
    """Port of the gateway; 0 takes a free one."""
    grpc_port: int = 0
    """Port of the gateway's gRPC; 0: none."""
    access: LocalAccessSettings = LocalAccessSettings()
    redis_url: str | None = None
    """Redis to use as registry; None: start an embedded one."""
    keeps_declared: bool = False
    """Models declared in the embedded Redis are declared again at the next start."""
    s3: bool = True
    """Start an object store for the pods; False: the variables AWS_* name another."""
    pool: str = "default"
    autoscaler: LocalAutoscalerSettings | None = None
    """None: no autoscaler runs, and only requests load models."""
    scheduling: str = "speculative"
    """Where steps of workflows run, unless a request says so."""
    mps: bool = False
    """Start NVIDIA's MPS daemon, so that pods on one GPU compute at the same time."""
    lease_ttl_s: float = 3.0
    """How long a pod counts as alive after its last heartbeat."""
    stop_grace_s: float = 10.0
    """How long requests in flight may take while the platform stops."""
