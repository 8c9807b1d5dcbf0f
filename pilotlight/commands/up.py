"""`up` and `down`: start the platform in the foreground or detached, and stop it."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from autoscaler.planning.pool_view import Limits
from autoscaler.scaling.limits import pool_problems
from pilotlight.commands import flags
from pilotlight.commands.apply import (
    Declared,
    models_of,
    print_applied,
    put_declared,
    read_declared,
)
from pilotlight.commands.autoscaler import LOADING_NAMES, loading_problems
from pilotlight.commands.flags import setting
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput
from pilotlight.output import Output, ProgressReporter, progress_bar
from pilotlight.platform.mps import mps_problems
from pilotlight.platform.platform import Platform
from pilotlight.platform.settings import (
    LocalAutoscalerSettings,
    LocalPodSettings,
    PlatformSettings,
)
from pilotlight.platform.supervisor import log_to_file, start_detached, stop_platform, supervise
from pilotlight.quantities import parse_bytes, parse_rate
from pilotlight.sample_models.samples import prepare_samples
from pilotlight.state_dir import PlatformState, StateDir
from registry.domain import loading_choice
from registry.domain.model import PlacementName
from registry.domain.slots import default_slots
from registry.inference_service.tenant_rules import parse_rules
from runtime.engines.model_server.server_flags import server_problems

app = typer.Typer()


@app.command()
def up(
    *,
    pods: Annotated[int, setting("PODS", "Number of pods to start.", min=1, max=256)] = 8,
    filename: flags.Files = [],  # noqa: B006 - typer copies it
    redis_url: Annotated[
        str | None,
        setting("REDIS_URL", "URL of a Redis to use as registry. Default: start an embedded one."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when the platform is ready.")
    ] = False,
    host: Annotated[str, setting("HOST", "Address the gateway listens on.")] = "127.0.0.1",
    port: Annotated[
        int, setting("PORT", "Port the gateway listens on; 0 takes a free one.", min=0, max=65535)
    ] = 8080,
    grpc_port: Annotated[
        int,
        setting(
            "GATEWAY_GRPC_PORT", "Port of the gateway's V2 over gRPC; 0: none.", min=0, max=65535
        ),
    ] = 0,
    slots: Annotated[
        int,
        setting(
            "SLOTS",
            "Concurrent requests per pod. 0: by device and profiles, "
            f"{default_slots()} on a CPU without profiles.",
            min=0,
        ),
    ] = 0,
    threads: Annotated[int, setting("THREADS", "CPU threads of one inference.", min=1)] = 1,
    pod_memory: Annotated[
        str, setting("POD_MEMORY", "Memory for models per pod, such as 4Gi or 500MB.")
    ] = "4Gi",
    pod_disk: Annotated[
        str | None,
        setting(
            "POD_DISK",
            "Disk for model files per pod, such as 20Gi.",
            show_default="four fifths of the free space",
        ),
    ] = None,
    pod_link_rate: Annotated[
        str,
        setting(
            "POD_LINK_RATE",
            "Limit of each pod's download rate from object storage, such as 100MB/s. "
            "For experiments.",
        ),
    ] = "unlimited",
    namespaces: Annotated[
        str,
        setting(
            "NAMESPACES", "Namespaces whose models pods serve, separated by commas.",
            show_default="all",
        ),
    ] = "",
    storage_prefixes: Annotated[
        str,
        setting(
            "STORAGE_PREFIXES",
            "URIs that each namespace's models may read with the pods' credentials, such as "
            "'team=s3://team/; *=file:///models'.",
            show_default="everything",
        ),
    ] = "",
    quotas: Annotated[
        str,
        setting(
            "QUOTAS",
            "Bytes per namespace, of memory on all pods and of cache on each, such as"
            " '*=memory:1Gi cache:20Gi'.",
            show_default="none",
        ),
    ] = "",
    allow_pickle: Annotated[
        bool,
        setting(
            "ALLOW_PICKLE",
            "Serve scikit-learn's model.joblib and model.pkl. Their code runs in a process per "
            "namespace without network, your files or other programs.",
            "--allow-pickle",
        ),
    ] = False,
    engine_command: Annotated[
        str,
        setting(
            "ENGINE_COMMAND",
            "Command of a server that speaks V2 and runs all models, such as MLServer's; each pod "
            "starts one. {repository}, {port}, {grpc_port} and {metrics_port} are replaced.",
            show_default="none",
        ),
    ] = "",
    engine_url: Annotated[
        str,
        setting(
            "ENGINE_URL",
            "URL of such a server that runs already, with --pods 1 and --engine-repository.",
            show_default="none",
        ),
    ] = "",
    engine_repository: Annotated[
        str,
        setting(
            "ENGINE_REPOSITORY", "Folder from which that server reads its models.",
            show_default="by pod",
        ),
    ] = "",
    engine_metrics: Annotated[
        str,
        setting(
            "ENGINE_METRICS", "URL of the server's metrics, for the memory of models.",
            show_default="memory of its process",
        ),
    ] = "",
    s3: Annotated[
        bool,
        setting(
            "S3", "Start an object store with the sample models. With --no-s3, AWS_* name yours.",
            "--s3/--no-s3",
        ),
    ] = True,
    objects: Annotated[
        Path | None,
        setting(
            "OBJECTS",
            "Folder the object store serves, with one folder per bucket. With this flag no "
            "sample models are made.",
            show_default="objects in --home",
        ),
    ] = None,
    allow_simulated_work: Annotated[
        bool,
        setting(
            "ALLOW_SIMULATED_WORK",
            "Honour the request header x-pilotlight-simulate. For experiments.",
            "--allow-simulated-work",
        ),
    ] = False,
    autoscaler: Annotated[
        bool,
        setting(
            "AUTOSCALER",
            "Run the autoscaler: preload models ahead of requests and demote idle ones.",
            "--autoscaler/--no-autoscaler",
        ),
    ] = True,
    loading: Annotated[
        str, setting("LOADING", f"Loading policy, one of {LOADING_NAMES}.")
    ] = "predictive",
    min_pods: Annotated[
        int | None,
        setting(
            "MIN_PODS",
            "Scale between this number and --pods; 0 scales to zero. Default: keep --pods running.",
            min=0,
        ),
    ] = None,
    pod_idle: Annotated[
        float,
        setting("POD_IDLE", "Seconds from the last request to the stop of the last pod.", min=0.1),
    ] = 120.0,
    pod_stable: Annotated[
        float,
        setting(
            "POD_STABLE", "Seconds for which fewer pods must suffice before a pod stops.", min=0.1
        ),
    ] = 60.0,
    placement: Annotated[
        str,
        setting(
            "PLACEMENT",
            "Planner that places models with a deadline and a profile on accelerators, each copy "
            f"in a pod of its own beside --pods: {', '.join(PlacementName)}.",
        ),
    ] = "off",
    mps: Annotated[
        bool,
        setting(
            "MPS",
            "Start NVIDIA's MPS daemon: pods on one GPU compute at once, within their shares.",
        ),
    ] = False,
    ephemeral: Annotated[
        bool,
        typer.Option(
            "--ephemeral",
            help="Begin without the models declared before, and forget this run's at its end. "
            "Default: models in the embedded Redis are declared again at the next start.",
        ),
    ] = False,
    pool: flags.Pool = "default",
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    json_: flags.Json = False,
) -> None:  # fmt: skip
    """Start the platform on this machine; Ctrl-C stops all of its processes."""
    problems = [*loading_problems(loading), *_placement_problems(placement, autoscaler=autoscaler)]
    try:
        parse_rules(namespaces=namespaces, prefixes=storage_prefixes, quotas=quotas)
    except ValueError as error:
        problems += str(error).splitlines()
    problems += _engine_problems(
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
    if autoscaler and (problems := _choice_problems(specs, pool, loading, placement)):
        raise InvalidInput(problems)
    if state_dir.is_locked():
        raise state_dir.already_running_error()
    state_dir.check_room()
    if s3 and settings.objects == state_dir.objects:  # the user's own folder is left unchanged
        prepare_samples(settings.objects, output)
    if detach:
        _run_detached(settings, output, specs)
    else:
        _run_in_foreground(settings, output, specs)


def _engine_problems(
    pods: int, *, url: str, command: str, repository: str, metrics: str
) -> list[str]:
    problems = server_problems(url=url, command=command, repository=repository, metrics=metrics)
    if pods > 1 and (url or repository):
        problems.append(
            f"--engine-url and --engine-repository serve one pod, --pods was {pods}: each pod needs"
            " a server of its own, which --engine-command starts"
        )
    return problems


def _placement_problems(placement: str, *, autoscaler: bool) -> list[str]:
    if placement not in PlacementName.__members__.values():
        return [f"--placement must be one of {', '.join(PlacementName)}, was {placement!r}"]
    if placement != PlacementName.OFF and not autoscaler:
        return [f"--placement {placement} needs the autoscaler: leave out --no-autoscaler"]
    return []


def _choice_problems(
    specs: Sequence[Declared], pool: str, loading: str, placement: str
) -> list[str]:
    """Annotations that name another loading policy or planner than the pool's."""
    models = models_of(specs)
    return [
        *loading_choice.loading_problems(models, pool, loading),
        *loading_choice.placement_problems(models, pool, placement),
    ]


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


def _run_detached(settings: PlatformSettings, output: Output, specs: Sequence[Declared]) -> None:
    with progress_bar("platform") as update:
        state = start_detached(settings, update)
    _print_ready(output, state)
    if specs:
        asyncio.run(_apply(PlatformTarget(settings.state_dir), output, specs))


async def _apply(target: PlatformTarget, output: Output, specs: Sequence[Declared]) -> None:
    async with target.registry() as registry:
        outcomes = await put_declared(registry, specs)
        has_server = (await registry.cluster()).has_server
    if output.as_json:
        _note_applied(output, specs, outcomes)
    else:
        print_applied(output, specs, outcomes, has_server=has_server)


def _note_applied(output: Output, specs: Sequence[Declared], outcomes: Sequence[str]) -> None:
    for spec, outcome in zip(specs, outcomes, strict=True):
        output.note(f"{spec.name} {outcome}")


def _run_in_foreground(
    settings: PlatformSettings, output: Output, specs: Sequence[Declared]
) -> None:
    log_to_file(settings)
    started_s = time.monotonic()
    reporter = ProgressReporter(output)

    async def on_ready(platform: Platform) -> None:
        reporter.close_bar()
        _print_ready(output, platform.state)
        if specs:
            _note_applied(output, specs, await put_declared(platform.cluster.registry, specs))
        output.note(f"Ready after {time.monotonic() - started_s:.1f} s. Ctrl-C stops everything.")

    try:
        asyncio.run(supervise(settings, on_progress=reporter.on_progress, on_ready=on_ready))
    finally:
        reporter.close_bar()
    output.note("stopped")


def _print_ready(output: Output, state: PlatformState) -> None:
    output.result(
        {
            "gateway": state.gateway,
            "pid": state.pid,
            "redis_url": state.redis_url,
            "pool": state.pool,
            "s3_endpoint": state.s3_endpoint,
            "autoscaler_metrics": state.autoscaler_metrics,
            "pods": list(state.pods),
        },
        [
            f"gateway       {state.gateway}",
            f"console       {state.gateway}/console",
            f"registry      {state.redis_url}",
            f"object store  {state.s3_endpoint or 'none'}",
            f"pods          {len(state.pods)}",
            f"autoscaler    {state.autoscaler_metrics or 'none'}",
            f"supervisor    pid {state.pid}",
        ],
    )
