"""`up` and `down`: start the platform in the foreground or detached, and stop it."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from autoscaler.planning.desired_pods import pool_problems
from autoscaler.planning.pool_view import Limits
from common.settings_table import settings_from_fields
from gateway.settings import GatewaySettings
from pilotlight.commands import flags, up_flags
from pilotlight.commands.apply import check_policies, declare_and_check, models_of, read_declared
from pilotlight.commands.autoscaler import loading_problems
from pilotlight.commands.kinds import Declared
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, check_extra
from pilotlight.output import Output, ProgressReporter, parse_bytes, parse_rate, progress_bar
from pilotlight.platform.accelerators import mps_problems
from pilotlight.platform.platform import Platform
from pilotlight.platform.processes import wait_for_ports
from pilotlight.platform.settings import (
    LocalAccessSettings,
    LocalAutoscalerSettings,
    LocalPodSettings,
    PlatformSettings,
)
from pilotlight.platform.supervisor import log_to_file, start_detached, stop_platform, supervise
from pilotlight.sample_models.samples import prepare_samples
from pilotlight.state_dir import PlatformState, StateDir
from registry.domain import loading_choice
from registry.domain.loading_choice import PLACEMENT
from registry.domain.model import PlacementName
from registry.inference_service.tenant_rules import parse_rules
from registry.redis.server_address import check_url
from runtime.engines.model_server.server_process import server_problems

app = typer.Typer()


@app.command()
def up(
    *,
    host: up_flags.Host = "127.0.0.1",
    port: up_flags.Port = 8080,
    grpc_port: up_flags.GrpcPort = 0,
    ingress_domain: up_flags.IngressDomain = "",
    redis_url: up_flags.RedisUrl = None,
    detach: up_flags.Detach = False,
    ephemeral: up_flags.Ephemeral = False,
    pods: up_flags.Pods = 8,
    slots: up_flags.Slots = 0,
    threads: up_flags.Threads = 1,
    pod_memory: up_flags.PodMemory = "4Gi",
    pod_disk: up_flags.PodDisk = None,
    pod_link_rate: up_flags.PodLinkRate = "unlimited",
    allow_pickle: up_flags.AllowPickle = False,
    engine_command: up_flags.EngineCommand = "",
    engine_url: up_flags.EngineUrl = "",
    engine_repository: up_flags.EngineRepository = "",
    engine_metrics: up_flags.EngineMetrics = "",
    s3: up_flags.S3 = True,
    objects: up_flags.Objects = None,
    autoscaler: up_flags.Autoscaler = True,
    loading: up_flags.Loading = "predictive",
    min_pods: up_flags.MinPods = None,
    pod_idle: up_flags.PodIdle = 120.0,
    pod_stable: up_flags.PodStable = 60.0,
    api_keys: up_flags.ApiKeys = None,
    token_issuers: up_flags.TokenIssuers = None,
    namespaces: up_flags.Namespaces = "",
    storage_prefixes: up_flags.StoragePrefixes = "",
    quotas: up_flags.Quotas = "",
    placement: up_flags.Placement = "off",
    mps: up_flags.Mps = False,
    allow_simulated_work: up_flags.AllowSimulatedWork = False,
    filename: flags.Files = [],  # noqa: B006 - typer copies it
    pool: flags.Pool = "default",
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    json_: flags.Json = False,
) -> None:
    """Start the platform on this machine; Ctrl-C stops all of its processes.

    \b
    pilotlight up -d --pods 4 -f models.yaml       # return when it is ready
    pilotlight up --min-pods 0 --pod-memory 8Gi    # no pods without requests
    """  # noqa: D301  (click looks for the character)
    check_extra("platform", "torch")
    problems = [*loading_problems(loading), *placement_problems(placement, autoscaler=autoscaler)]
    try:
        if redis_url is not None:
            check_url(redis_url)
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
    access = LocalAccessSettings(_folder(api_keys), _folder(token_issuers), ingress_domain)
    problems += access_problems(access)
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
            link_rate=int(parse_rate(pod_link_rate, field="--pod-link-rate") or 0),
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
        access=access,
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
    check_policies(specs)
    if autoscaler and (problems := choice_problems(specs, pool, loading, placement)):
        raise InvalidInput(problems)
    if state_dir.is_locked():
        raise state_dir.already_running_error()
    state_dir.check_room()
    asyncio.run(wait_for_ports(host, port, grpc_port))  # before the samples are made
    if s3 and settings.objects == state_dir.objects:  # the user's own folder is left unchanged
        prepare_samples(settings.objects, output)
    if detach:
        run_detached(settings, output, specs)
    else:
        run_in_foreground(settings, output, specs)


def _folder(path: Path | None) -> str:
    return "" if path is None else str(path.expanduser().absolute())


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


def engine_problems(
    pods: int, *, url: str, command: str, repository: str, metrics: str
) -> list[str]:
    problems = server_problems(url=url, command=command, repository=repository, metrics=metrics)
    if pods > 1 and (url or repository):
        problems.append(
            f"--engine-url and --engine-repository serve one pod, --pods was {pods}: each pod needs"
            " a server of its own, which --engine-command starts"
        )
    return problems


def access_problems(access: LocalAccessSettings) -> list[str]:
    """What the gateway would refuse to start with."""
    fields = {
        "api_keys": access.api_keys,
        "token_issuers": access.token_issuers,
        "ingress_domain": access.ingress_domain,
    }
    try:
        settings_from_fields(GatewaySettings, fields)
    except ValueError as error:
        return str(error).split("; ")
    return []


def placement_problems(placement: str, *, autoscaler: bool) -> list[str]:
    if placement not in PLACEMENT:
        return [f"--placement must be one of {PLACEMENT}, was {placement!r}"]
    if placement != PlacementName.OFF and not autoscaler:
        return [f"--placement {placement} needs the autoscaler: leave out --no-autoscaler"]
    return []


def choice_problems(
    specs: Sequence[Declared], pool: str, loading: str, placement: str
) -> list[str]:
    """Annotations that name another loading policy or planner than the pool's."""
    models = models_of(specs)
    return [
        *loading_choice.loading_problems(models, pool, loading),
        *loading_choice.placement_problems(models, pool, placement),
    ]


def run_detached(settings: PlatformSettings, output: Output, specs: Sequence[Declared]) -> None:
    with progress_bar("platform") as update:
        state = start_detached(settings, update)
    print_ready(output, state)
    target = PlatformTarget(settings.state_dir)
    if specs:
        asyncio.run(_apply(target, output, specs))
    note_next(output, has_models=bool(asyncio.run(target.cluster()).models))


async def _apply(target: PlatformTarget, output: Output, specs: Sequence[Declared]) -> None:
    async with target.registry() as registry:
        await declare_and_check(target, registry, output, specs, is_note=output.as_json)


def run_in_foreground(
    settings: PlatformSettings, output: Output, specs: Sequence[Declared]
) -> None:
    log_to_file(settings)
    started_s = time.monotonic()
    reporter = ProgressReporter(output)

    async def on_ready(platform: Platform) -> None:
        reporter.close_bar()
        print_ready(output, platform.state)
        if specs:
            target = PlatformTarget(settings.state_dir)
            registry = platform.cluster.registry
            await declare_and_check(target, registry, output, specs, is_note=True)
        output.note(f"Ready after {time.monotonic() - started_s:.1f} s. Ctrl-C stops everything.")
        note_next(output, has_models=bool(specs or platform.cluster.state.models))

    try:
        asyncio.run(supervise(settings, on_progress=reporter.on_progress, on_ready=on_ready))
    finally:
        reporter.close_bar()
    output.note("stopped")


def print_ready(output: Output, state: PlatformState) -> None:
    output.result(
        {
            "gateway": state.gateway,
            "grpc": state.grpc or None,
            "pid": state.pid,
            "redis_url": state.redis_url,
            "pool": state.pool,
            "s3_endpoint": state.s3_endpoint,
            "autoscaler_metrics": state.autoscaler_metrics,
            "pods": list(state.pods),
        },
        [
            f"gateway       {state.gateway}",
            f"grpc          {state.grpc or 'none (--grpc-port)'}",
            f"console       {state.gateway}/console",
            f"registry      {state.redis_url}",
            f"object store  {state.s3_endpoint or 'none'}",
            f"pods          {len(state.pods)}",
            f"autoscaler    {state.autoscaler_metrics or 'none'}",
            f"supervisor    pid {state.pid}",
        ],
    )


def note_next(output: Output, *, has_models: bool) -> None:
    """What to do with a platform that has just started."""
    if has_models:
        output.note("next: pilotlight get models")
        return
    output.note("next: pilotlight apply -f manifests/samples")
    output.note("your own model, from training to answers: docs/first-model.md")
