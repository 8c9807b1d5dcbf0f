"""Settings of the platform on one machine, and from them the command of each of its processes.

The flags of `pilotlight up` fill them. Those of processes are by the names, and with the defaults,
of their own tables.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from common.child_process import Command, python_environment, python_module
from common.pod_secret import make_secret
from common.process import write_private_file
from common.settings_table import as_flags
from pilotlight.platform.accelerators import core_groups, cores_of_share, gpu_of_pod
from pilotlight.platform.processes import object_store_command, redis_command
from pilotlight.state_dir import StateDir
from registry.domain.model import PlacementName
from registry.domain.pod import placed_slots
from registry.domain.records import PlacedPod
from registry.domain.tenant_rules import TenantRules
from registry.redis.acl import Role, acl_file

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
    rules: TenantRules = TenantRules()  # noqa: RUF009  (it is frozen)
    """What each namespace may use and read."""
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


def _spec(
    settings: PlatformSettings, name: str, command: Sequence[str], env: Mapping[str, str]
) -> Command:
    log_file = settings.state_dir.logs / f"{name.replace(' ', '-')}.log"
    return Command(name, command, python_environment(env), log_file)


def _command(settings: PlatformSettings, module: str, **values: object) -> list[str]:
    """Of a process with these settings, and those that all processes share."""
    shared = {"pool": settings.pool, "pod_secret_file": settings.state_dir.pod_secret}
    return [*python_module(module), *as_flags({**shared, **values})]


def redis_spec(settings: PlatformSettings, path: Path) -> Command:
    """An embedded Redis without any data, and a password for each role."""
    folder = settings.state_dir.redis
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    passwords = {str(role): [make_secret()] for role in Role}
    for role, [password] in passwords.items():
        write_private_file(settings.state_dir.redis_password(role), password)
    users = folder / "users.acl"
    write_private_file(users, acl_file(passwords, is_exact=False))
    command = [*redis_command(path, folder), "--aclfile", str(users)]
    return _spec(settings, "redis", command, os.environ)


def embedded_redis_url(settings: PlatformSettings, path: Path, role: Role) -> str:
    """Where `redis_spec` listens at `path`."""
    file = settings.state_dir.redis_password(role)
    return f"unix://{role}@{quote(str(path))}?password_file={quote(str(file))}"


def object_store_spec(settings: PlatformSettings, port: int) -> Command:
    settings.objects.mkdir(parents=True, exist_ok=True)
    command = object_store_command(port, settings.objects, settings.state_dir.checksums)
    return _spec(settings, "object store", command, os.environ)


def gateway_spec(
    settings: PlatformSettings, env: Mapping[str, str], *, redis_url: str, **values: object
) -> Command:
    """`values`: settings of the gateway that are known when it starts."""
    shared = {"grpc_port": settings.grpc_port, "shutdown_delay": settings.stop_grace_s}
    command = _command(settings, "gateway", **values, **shared, **settings.gateway)
    return _spec(settings, "gateway", command, _with_redis(env, redis_url))


def scheduler_spec(
    settings: PlatformSettings, env: Mapping[str, str], *, redis_url: str, **values: object
) -> Command:
    command = _command(settings, "workflows", **values, scheduling=settings.scheduling)
    return _spec(settings, "scheduler", command, _with_redis(env, redis_url))


def autoscaler_spec(
    settings: PlatformSettings,
    autoscaler: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    redis_url: str,
    metrics_port: int,
) -> Command:
    given = {"metrics_port": metrics_port, **autoscaler}
    if given.get("placement", PlacementName.OFF) != PlacementName.OFF:
        given["cpu_accelerators"] = ",".join(core_groups(settings.threads))
    if given.get("min_pods") is not None:
        given["max_pods"] = settings.pods
    command = _command(settings, "autoscaler", **given)
    return _spec(settings, "autoscaler", command, _with_redis(env, redis_url))


def _with_redis(env: Mapping[str, str], redis_url: str) -> dict[str, str]:
    """The URL may hold a password: every user sees arguments, only this one an environment."""
    return {**env, "PILOTLIGHT_REDIS_URL": redis_url}


def child_environment(settings: PlatformSettings, s3_endpoint: str | None) -> dict[str, str]:
    """The environment of gateway, autoscaler and pods; it names the object store, if there is one.

    HF_* are the user's.
    """
    env = {
        **os.environ,
        "OMP_NUM_THREADS": str(settings.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "NO_PROXY": f"{os.environ.get('NO_PROXY', '')},127.0.0.1,localhost".lstrip(","),
    }
    env["no_proxy"] = env["NO_PROXY"]
    if s3_endpoint is not None:
        env |= {
            "AWS_ENDPOINT_URL": s3_endpoint,
            "AWS_ACCESS_KEY_ID": "pilotlight",
            "AWS_SECRET_ACCESS_KEY": "pilotlight",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            env.pop(name, None)
    return env


def pod_settings(
    settings: PlatformSettings, name: str, *, redis_url: str, gpus: Sequence[str] = ()
) -> dict[str, Any]:
    """Settings of the runtime for the pod `pod-N`, on the node `node-N`; it has one of `gpus`."""
    state_dir = settings.state_dir
    number = name.removeprefix("pod-")
    device = gpu_of_pod(int(number) if number.isdecimal() else 0, settings.pods, gpus)
    node = name.replace("pod-", "node-")
    return {
        "name": name,
        "redis_url": redis_url,
        "pool": settings.pool,
        "pod_secret_file": str(state_dir.pod_secret),
        "node": node,
        "grpc_port": 0,  # KServe's default is one port, here are many pods
        "gpu": device.gpu,
        "share": device.share_pct,
        "cache_dir": str(state_dir.nodes / node),
        "host_dir": str(state_dir.memory / node),
        "lease_ttl": settings.lease_ttl_s,
        "drain_timeout": settings.stop_grace_s,
        "memory_bytes": POD_MEMORY_BYTES,
        "has_tenants": not settings.rules.is_open,
        **settings.pod,
        "log_file": str(state_dir.logs / f"{name}.log"),
    }


def placed_pod_settings(
    settings: PlatformSettings, pod: PlacedPod, *, redis_url: str, taken: Sequence[int] = ()
) -> dict[str, Any]:
    """Settings of the runtime for a placed pod; all of them share the node `node-placed`.

    `taken`: the cores of placed pods that have a share, once for each.
    """
    replica = pod.replica
    node, base = "node-placed", pod_settings(settings, pod.name, redis_url=redis_url)
    found = {
        **base,
        "node": node,
        "cache_dir": str(settings.state_dir.nodes / node),
        "host_dir": str(settings.state_dir.memory / node),
        "placed_model": replica.model,
        "place": pod.name,
        "slots": placed_slots(base.get("slots", 0), replica.batch_size),
    }
    cores = core_groups(settings.threads).get(replica.accelerator)
    if cores is None:
        return {**found, "gpu": replica.accelerator, "share": replica.share_pct or 0.0}
    used = cores_of_share(cores, replica.share_pct, taken)
    return {
        **found,
        "cores": ",".join(map(str, used)),
        "threads": len(used),
        "share": 100 * len(used) / len(cores) if len(used) < len(cores) else 0.0,
    }
