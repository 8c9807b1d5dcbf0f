"""The settings of one pod: one table drives the flag, the environment variable and the default."""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.pod_secret import parse_secret_file
from common.settings_table import option, parse_bool, parse_choice, parse_int, parse_seconds
from common.sizes import parse_size_from
from common.tls import TLS_DIR_HELP, parse_tls_dir
from registry.domain.model import EngineChoice
from registry.domain.pod import CPU_SLOTS, GPU_SLOTS, MAX_SLOTS
from registry.redis.server_address import parse_redis_url
from runtime.device.queue import MAX_SEQUENCES
from runtime.engines.server_process import server_problems
from runtime.generation.limits import DEFAULT_CACHE_BYTES, TIMEOUT_S, GenerationLimits
from runtime.tiers.host_folder import DEFAULT_BASE

KSERVE_GRPC_PORT = 8081
GIB = 1024**3
MIB = 1024**2


def _percentage(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise ValueError(f"must be from 0 to 100 %, was {text!r}")
    return value


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The settings of a pod. Times in seconds, sizes in bytes."""

    name: str = option(
        "",
        str,
        "name of the pod, unique in its pool",
        is_required=True,
        variable="PILOTLIGHT_POD_NAME",
    )
    redis_url: str = option("redis://127.0.0.1:6379/0", parse_redis_url, "the registry")
    host: str = option("127.0.0.1", str, "address to listen on; 0.0.0.0 in a container")
    port: int = option(0, parse_int(0), "port to listen on; 0: a free one")
    grpc_port: int = option(
        KSERVE_GRPC_PORT,
        parse_int(0, 65535),
        "port of the gRPC service; 0: a free one, as for 8081 if that is in use",
    )
    advertise: str = option("", str, "host at which others reach this pod, if not `host`")
    advertise_port: int = option(
        0,
        parse_int(0, 65535),
        "port at which others reach this pod, such as 8012 of Knative's queue-proxy; 0: the port"
        " it listens on",
    )
    pod_uid: str = option(
        "", str, "uid of the pod's Kubernetes object, by the downward API; empty: none"
    )
    pod_secret_file: str = option(
        "",
        parse_secret_file,
        "file with the secrets, one per line, of which requests must carry one; read again when it"
        " changes; empty: all requests are accepted",
    )
    tls_dir: str = option("", parse_tls_dir, TLS_DIR_HELP)
    pool: str = option("default", str, "pool of pods that serve the same models")
    node: str = option("", str, "node the pod runs on; empty: the host name")
    model_name: str = option(
        "",
        str,
        "name of the only model that this pod serves, from /mnt/models; empty: all models of the"
        " registry",
    )
    takes_places: str = option(
        "",
        str,
        "accelerator whose open places of the plan this pod takes: `gpu`, the first of its"
        " environment, or a name; with a place it serves that model only, and for another place its"
        " process starts anew; empty: none",
    )
    max_share: float = option(
        0.0,
        _percentage,
        "of a pod that takes places: the largest share that it can have, in %,"
        " such as NVIDIA's device plugin leaves it; 0: all",
    )
    slots: int = option(
        0,
        parse_int(0),
        f"requests served at once by this pod as entry pod; 0: {CPU_SLOTS} on a CPU and {GPU_SLOTS}"
        f" on a GPU, or two of the largest best batches by the profiles of its accelerator (at most"
        f" {MAX_SLOTS}, and {CPU_SLOTS} per core of a CPU)",
    )
    memory_bytes: int = option(
        2 * GIB,
        parse_size_from(0),
        "budget for models on the device; 0: 85 % of a GPU's memory, 2 GiB on a CPU",
    )
    device: str = option(
        "auto",
        parse_choice("auto", "cpu", "cuda"),
        "cpu, cuda (without one the pod ends, with the reason), or auto: cuda if"
        " the pod can use one",
    )
    host_bytes: int = option(
        GIB,
        parse_size_from(0),
        "budget of tier host for all pods of the node, within their limits; 0: none",
    )
    host_dir: str = option(
        "", str, "memory-backed folder of tier host; empty: one per pool and node in /dev/shm"
    )
    cache_dir: str = option(
        "", str, "folder for model files, shared by the pods of a node; empty: a temporary one"
    )
    disk_bytes: int = option(
        0,
        parse_size_from(0),
        "budget for model files in `cache-dir`; 0: four fifths of the free disk space",
    )
    storage_config: str = option(
        "", str, "folder where KServe's secret `storage-config` is mounted; empty: none"
    )
    threads: int = option(1, parse_int(1), "threads of one inference")
    allow_simulated_work: bool = option(
        False, parse_bool, "honour x-pilotlight-simulate; for experiments only"
    )
    max_body_bytes: int = option(64 * MIB, parse_size_from(1), "longest request body")
    drain_timeout: float = option(
        20.0,
        parse_seconds,
        "how long requests in flight may take after SIGTERM; closing takes up to 8 s more, and"
        " Kubernetes kills after 30 s in all",
    )
    inference_timeout: float = option(
        60.0, parse_seconds, "longest time of one inference; beyond it the model counts as hung"
    )
    generation_cache_bytes: int = option(
        0,
        parse_size_from(0),
        "key-value cache of each model that generates text, at most; 0: 256 MiB, and for vLLM on a"
        " GPU a quarter of `memory-bytes`",
    )
    allow_pickle: bool = option(
        False,
        parse_bool,
        "serve scikit-learn's pickles (*.joblib, *.pkl), whose code runs in a process per namespace"
        " without network, files of yours or other programs",
    )
    engine_url: str = option(
        "",
        str,
        "URL of a model server beside the pod that speaks V2 with the repository extension, such as"
        " http://127.0.0.1:8000: it runs all models, of every format that it reads; empty: the pod"
        " runs them itself",
    )
    engine_command: str = option(
        "",
        str,
        "command that starts such a server, in place of `engine-url`: {repository}, {port},"
        " {grpc_port} and {metrics_port} are replaced; the pod restarts it and ends it",
    )
    engine_repository: str = option(
        "",
        str,
        "folder from which the server reads its models, as the pod sees it, for this pod alone;"
        " with `engine-command` by default beside `cache-dir`",
    )
    engine_metrics: str = option(
        "",
        str,
        "URL of the server's metrics, for the memory of models: Triton's nv_gpu_memory_used_bytes,"
        " else process_resident_memory_bytes; empty: the memory of its process, if it can be seen",
    )
    engine_python: str = option(
        "",
        str,
        "Python of an environment with vLLM, which then runs models that generate text, each in a"
        " process of its own; empty: this pod's own engine does",
    )
    llama_server: str = option(
        "",
        str,
        "llama.cpp's server (llama-server), which then runs models in GGUF files, each in a process"
        " of its own; empty: such models are refused",
    )
    engine: str = option(
        "auto",
        parse_choice(*EngineChoice),
        "what runs models without the annotation pilotlight.io/engine: vllm, llama.cpp, own, or"
        " auto: vLLM for text generation where it knows the architecture, llama.cpp for GGUF files",
    )
    log_level: str = option("INFO", str, "lowest level that is logged")

    # Without flag or variable: set by the process that starts the pod, or constant.
    has_tenants: bool = False
    """Also off a cluster: the pod serves what the registry's rules grant, nothing without them."""
    placed_model: str = ""
    """NAMESPACE/NAME of the model that a plan placed here: loaded at the start, and the only one
    served; empty: all models."""
    place: str = ""
    """Name of the pod's place in the plan; empty: none."""
    gpu: str = ""
    """UUID of the GPU to use; empty: the first one of the environment."""
    cores: str = ""
    """Cores of a CPU pod, such as 0,1; empty: all cores of its environment."""
    share: float = 0.0
    """Part of the accelerator's compute in %: on a GPU by MPS, on a CPU that of `cores`; 0: all."""
    model_dir: str = "/mnt/models"
    """Folder of the only model, where KServe mounts it."""
    link_rate: int = 0
    """Bytes per second of all downloads together, for experiments; 0: no limit."""
    log_file: str = ""
    """Log file of a pod forked by the forkserver; empty: standard error."""
    tensor_store_bytes: int = 256 * MIB
    """Host memory for outputs of workflows' steps that stay at the pod; others are sent with the
    response, which takes longer."""
    lease_ttl: float = 3.0
    """Time after the last heartbeat at which a pod counts as lost; two heartbeats may be missed."""
    retire_grace: float = 5.0
    """Time from a model's withdrawal to the deletion of its files: replacing an object withdraws
    it for a moment."""
    engine_load_timeout: float = 300.0
    """Time limit of a load by the model server; beyond it the load counts as hung."""
    generation_max_tokens: int = 4096
    """Longest generated text, whatever a request asks for."""

    def __post_init__(self) -> None:
        """Raises ValueError for contradictory settings of a model server."""
        if problems := server_problems(
            url=self.engine_url,
            command=self.engine_command,
            repository=self.engine_repository,
            metrics=self.engine_metrics,
            programs=self.engine_python or self.llama_server,
        ):
            raise ValueError("; ".join(problems))

    @property
    def heartbeat_s(self) -> float:
        """Interval of heartbeats: a third of the lease, at most 1 s, as they carry measurements."""
        return min(1.0, self.lease_ttl / 3)

    @property
    def has_server(self) -> bool:
        """True if a model server beside the pod runs its models."""
        return bool(self.engine_url or self.engine_command)

    @property
    def has_engines(self) -> bool:
        """True if models run in processes of engines of their own."""
        return bool(self.engine_python or self.llama_server)

    @property
    def generation_limits(self) -> GenerationLimits:
        return GenerationLimits(
            cache_bytes=self.generation_cache_bytes or DEFAULT_CACHE_BYTES,
            max_concurrent=MAX_SEQUENCES,
            max_new_tokens=self.generation_max_tokens,
            timeout_s=TIMEOUT_S,
        )

    @property
    def cache_path(self) -> Path:
        default = Path(tempfile.gettempdir()) / "pilotlight-cache" / self.node_name / self.pool
        return Path(self.cache_dir) if self.cache_dir else default

    @property
    def repository_path(self) -> Path:
        """The model server's repository: by default on the file system of the disk cache."""
        cache = self.cache_path
        default = cache.with_name(f"{cache.name}-models-of-{self.name}")
        return Path(self.engine_repository) if self.engine_repository else default

    @property
    def host_path(self) -> Path:
        default = DEFAULT_BASE / f"pilotlight-{os.getuid()}" / f"{self.pool}~{self.node_name}"
        return Path(self.host_dir) if self.host_dir else default

    @property
    def node_name(self) -> str:
        return self.node or socket.gethostname()
