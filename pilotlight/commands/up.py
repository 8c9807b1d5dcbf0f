"""`up` and `down`: start the platform in the foreground or detached, and stop it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import Signature, signature
from typing import Any, Final

import typer

from autoscaler.desired_pods import pool_problems
from autoscaler.policy import Limits
from gateway.authentication.issuers import LOOPBACK
from pilotlight.commands import flags
from pilotlight.commands.apply import check_policies, declare_and_check, models_of, read_declared
from pilotlight.commands.kinds import Declared
from pilotlight.commands.target import PlatformTarget
from pilotlight.commands.up_flags import SHARED_FLAGS, UP_FLAGS, settings_of
from pilotlight.errors import InvalidInput, check_extra
from pilotlight.output import Output, ProgressReporter, progress_bar
from pilotlight.platform.accelerators import mps_problems
from pilotlight.platform.machine import Machine
from pilotlight.platform.platform import Platform
from pilotlight.platform.processes import wait_for_ports
from pilotlight.platform.settings import PlatformSettings
from pilotlight.platform.supervisor import log_to_file, start_detached, stop_platform, supervise
from pilotlight.sample_models import prepare_samples
from pilotlight.state_dir import PlatformState, StateDir
from registry import policy_names
from registry.domain.model import PlacementName
from registry.domain.tenant_rules import TenantRules, machine_rules
from registry.redis.server_address import check_url
from runtime.engines.engine_adapter import missing_programs
from runtime.engines.server_process import server_problems

app = typer.Typer()


def up(**given: Any) -> None:
    """Start the platform on this machine; Ctrl-C stops all of its processes.

    \b
    pilotlight up -d --pods 4 -f models.yaml       # return when it is ready
    pilotlight up --min-pods 0 --pod-memory 8Gi    # no pods without requests
    """  # noqa: D301  (click looks for the character)
    check_extra("platform", "torch")
    settings, output = read_settings(given), Output(given["json_"])
    state_dir, pool = settings.state_dir, settings.pool
    specs = read_declared(given["filename"], given["namespace"]) if given["filename"] else []
    check_policies(specs)
    if settings.autoscaler is not None:
        loading, placement = settings.autoscaler["loading"], settings.autoscaler["placement"]
        if problems := choice_problems(specs, pool, loading, placement):
            raise InvalidInput(problems)
    if state_dir.is_locked():
        raise state_dir.already_running_error()
    state_dir.check_room()
    # before the samples are made
    asyncio.run(wait_for_ports(settings.host, settings.port, settings.grpc_port))
    if settings.s3 and settings.objects == state_dir.objects:  # the user's own is left unchanged
        prepare_samples(settings.objects, output)
    note_open(settings, output)
    with suppress(OSError):  # only simulations need it
        Machine.measure(state_dir.machine)
    if given["detach"]:
        run_detached(settings, output, specs)
    else:
        run_in_foreground(settings, output, specs)


def note_open(settings: PlatformSettings, output: Output) -> None:
    is_asking = settings.gateway.keys() & {"api_keys", "token_issuers"}
    if settings.host not in LOOPBACK and not is_asking:
        output.note(
            f"warning: whoever reaches {settings.host} may call every model and read the console:"
            " give --api-keys (docs/tenants.md), or a --host of loopback"
        )


up.__signature__ = Signature(  # type: ignore[attr-defined]
    [*(each.parameter for each in UP_FLAGS), *SHARED_FLAGS]
)
up.__annotations__ = {each.name: each.annotation for each in signature(up).parameters.values()}
app.command()(up)


def read_settings(given: Mapping[str, Any]) -> PlatformSettings:
    """Of the flags by name; raises InvalidInput with all mistakes."""
    problems: list[str] = []
    pods, min_pods, redis_url = given["pods"], given["min_pods"], given["redis_url"]
    pod = settings_of("pod", given, problems)
    autoscaler = settings_of("autoscaler", given, problems)
    gateway = settings_of("gateway", given, problems)
    if given["placement"] != PlacementName.OFF and not given["autoscaler"]:
        problems.append(
            f"--placement {given['placement']} needs the autoscaler: leave out --no-autoscaler"
        )
    if redis_url is not None:
        try:
            check_url(redis_url)
        except ValueError as error:
            problems.append(str(error))
    rules = TenantRules()
    try:
        rules = machine_rules(given["namespaces"], given["storage_prefixes"], given["quotas"])
    except ValueError as error:
        problems += str(error).splitlines()
    problems += engine_problems(pods, pod)
    if min_pods is not None:
        problems += pool_problems(Limits(min_pods, pods))
    if given["mps"]:
        problems += mps_problems()
    if problems:
        raise InvalidInput(problems)
    state_dir = StateDir.of(given["home"])
    return PlatformSettings(
        state_dir=state_dir,
        objects=(given["objects"] or state_dir.objects).expanduser().absolute(),
        pods=pods,
        pod=pod,
        host=gateway.pop("host"),
        port=gateway.pop("port"),
        grpc_port=gateway.pop("grpc_port"),
        gateway=gateway,
        redis_url=redis_url,
        rules=rules,
        keeps_declared=not given["ephemeral"],
        s3=given["s3"],
        pool=given["pool"],
        mps=given["mps"],
        autoscaler=autoscaler if given["autoscaler"] else None,
    )


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


_ENGINE: Final = ("url", "command", "repository", "metrics")


def engine_problems(pods: int, pod: Mapping[str, Any]) -> list[str]:
    """`pod`: settings of every pod."""
    programs = [pod.get(name, "") for name in ("engine_python", "llama_server")]
    engine = {name: pod.get(f"engine_{name}", "") for name in _ENGINE}
    problems = server_problems(**engine, programs="".join(programs))
    problems += missing_programs(*programs)
    if pods > 1 and (engine["url"] or engine["repository"]):
        problems.append(
            f"--engine-url and --engine-repository serve one pod, --pods was {pods}: each pod needs"
            " a server of its own, which --engine-command starts"
        )
    return problems


def choice_problems(
    specs: Sequence[Declared], pool: str, loading: str, placement: str
) -> list[str]:
    """Annotations that name another loading policy or planner than the pool's."""
    models = models_of(specs)
    return [
        *policy_names.loading_problems(models, pool, loading),
        *policy_names.placement_problems(models, pool, placement),
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
