"""`up` and `down`: start the platform in the foreground or detached, and stop it."""

import typer

from autoscaler.planning.pool_view import Limits
from autoscaler.scaling.limits import pool_problems
from pilotlight.commands import flags, up_flags
from pilotlight.commands.apply import read_declared
from pilotlight.commands.autoscaler import loading_problems
from pilotlight.commands.up_checks import choice_problems, engine_problems, placement_problems
from pilotlight.commands.up_run import run_detached, run_in_foreground
from pilotlight.errors import InvalidInput
from pilotlight.output import Output
from pilotlight.platform.mps import mps_problems
from pilotlight.platform.settings import (
    LocalAutoscalerSettings,
    LocalPodSettings,
    PlatformSettings,
)
from pilotlight.platform.supervisor import stop_platform
from pilotlight.quantities import parse_bytes, parse_rate
from pilotlight.sample_models.samples import prepare_samples
from pilotlight.state_dir import StateDir
from registry.inference_service.tenant_rules import parse_rules

app = typer.Typer()


@app.command()
def up(
    *,
    pods: up_flags.Pods = 8,
    filename: flags.Files = [],  # noqa: B006 - typer copies it
    redis_url: up_flags.RedisUrl = None,
    detach: up_flags.Detach = False,
    host: up_flags.Host = "127.0.0.1",
    port: up_flags.Port = 8080,
    grpc_port: up_flags.GrpcPort = 0,
    slots: up_flags.Slots = 0,
    threads: up_flags.Threads = 1,
    pod_memory: up_flags.PodMemory = "4Gi",
    pod_disk: up_flags.PodDisk = None,
    pod_link_rate: up_flags.PodLinkRate = "unlimited",
    namespaces: up_flags.Namespaces = "",
    storage_prefixes: up_flags.StoragePrefixes = "",
    quotas: up_flags.Quotas = "",
    allow_pickle: up_flags.AllowPickle = False,
    engine_command: up_flags.EngineCommand = "",
    engine_url: up_flags.EngineUrl = "",
    engine_repository: up_flags.EngineRepository = "",
    engine_metrics: up_flags.EngineMetrics = "",
    s3: up_flags.S3 = True,
    objects: up_flags.Objects = None,
    allow_simulated_work: up_flags.AllowSimulatedWork = False,
    autoscaler: up_flags.Autoscaler = True,
    loading: up_flags.Loading = "predictive",
    min_pods: up_flags.MinPods = None,
    pod_idle: up_flags.PodIdle = 120.0,
    pod_stable: up_flags.PodStable = 60.0,
    placement: up_flags.Placement = "off",
    mps: up_flags.Mps = False,
    ephemeral: up_flags.Ephemeral = False,
    pool: flags.Pool = "default",
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    json_: flags.Json = False,
) -> None:
    """Start the platform on this machine; Ctrl-C stops all of its processes."""
    problems = [*loading_problems(loading), *placement_problems(placement, autoscaler=autoscaler)]
    try:
        parse_rules(namespaces=namespaces, prefixes=storage_prefixes, quotas=quotas)
    except ValueError as error:
        problems += str(error).splitlines()
    problems += engine_problems(
        pods,
        url=engine_url,
        command=engine_command,
        repository=engine_repository,
        metrics=engine_metrics,
    )
    if min_pods is not None:
        problems += pool_problems(Limits(min_pods, pods))
    if mps:
        problems += mps_problems()
    if problems:
        raise InvalidInput(problems)
    state_dir = StateDir.of(home)
    settings = PlatformSettings(
        state_dir=state_dir,
        objects=(objects or state_dir.objects).expanduser().absolute(),
        pods=pods,
        pod=LocalPodSettings(
            slots=slots,
            threads=threads,
            memory_bytes=parse_bytes(pod_memory, field="--pod-memory"),
            disk_bytes=0 if pod_disk is None else parse_bytes(pod_disk, field="--pod-disk"),
            link_bytes_per_s=parse_rate(pod_link_rate, field="--pod-link-rate"),
            allow_simulated_work=allow_simulated_work,
            namespaces=namespaces,
            storage_prefixes=storage_prefixes,
            quotas=quotas,
            allow_pickle=allow_pickle,
            engine_url=engine_url,
            engine_command=engine_command,
            engine_repository=engine_repository,
            engine_metrics=engine_metrics,
        ),
        host=host,
        port=port,
        grpc_port=grpc_port,
        redis_url=redis_url,
        keeps_declared=not ephemeral,
        s3=s3,
        pool=pool,
        mps=mps,
        autoscaler=LocalAutoscalerSettings(
            loading, min_pods, pod_idle, pod_stable, placement=placement
        )
        if autoscaler
        else None,
    )
    output = Output(json_)
    specs = read_declared(filename, namespace) if filename else []
    if autoscaler and (problems := choice_problems(specs, pool, loading, placement)):
        raise InvalidInput(problems)
    if state_dir.is_locked():
        raise state_dir.already_running_error()
    state_dir.check_room()
    if s3 and settings.objects == state_dir.objects:  # the user's own folder is left unchanged
        prepare_samples(settings.objects, output)
    if detach:
        run_detached(settings, output, specs)
    else:
        run_in_foreground(settings, output, specs)


@app.command()
def down(*, home: flags.Home = None, json_: flags.Json = False) -> None:
    """Stop the platform of --home and wait until all of its processes have ended."""
    state_dir, output = StateDir.of(home), Output(json_)
    pid = stop_platform(state_dir)
    document = {"stopped": pid is not None, "home": str(state_dir.root)}
    if pid is None:
        output.result(document, [f"no platform runs in {state_dir.root}"])
    else:
        output.result({**document, "pid": pid}, [f"stopped (pid {pid})"])
