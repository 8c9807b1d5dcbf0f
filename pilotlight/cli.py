"""The command line: declares the verbs and their flags, and maps errors to exit status.

0: done. 1: it failed, and standard error says why. 2: what was asked is wrong or refused as a
whole (mistakes in flags or YAML, a platform that is already running); nothing was changed.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands import apply as apply_command
from pilotlight.commands import forecast, get, profile
from pilotlight.commands import predict as predict_command
from pilotlight.commands import up as up_command
from pilotlight.commands.autoscaler import LOADING_NAMES, autoscaler_choice, explain_plans
from pilotlight.commands.load_app import experiment, load_app, report_runs, simulate
from pilotlight.commands.options import (
    FilesOption,
    GatewayOption,
    HomeOption,
    JsonOption,
    NamespaceOption,
    PoolOption,
    RedisOption,
)
from pilotlight.commands.target import PlatformTarget, model_names
from pilotlight.demo.runner import run_demo
from pilotlight.errors import AlreadyRunning, Interrupted, InvalidInput, PilotlightError
from pilotlight.output import Output
from pilotlight.platform.processes import python_environment
from pilotlight.platform.settings import LocalPodSettings, PlatformSettings
from pilotlight.quantities import parse_bytes, parse_rate
from pilotlight.sample_models.architectures import ARCHITECTURES
from pilotlight.samples import make_model_command
from pilotlight.state_dir import StateDir

app = typer.Typer(
    name="pilotlight",
    help="Serverless model inference for KServe and Knative: a whole platform on one machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
get_app = typer.Typer(no_args_is_help=True, help="Show models or pods.")
app.add_typer(get_app, name="get")
app.add_typer(load_app, name="load")
app.command("report")(report_runs)
app.command()(simulate)
app.command()(experiment)
app.add_typer(forecast.app, name="forecast")


def main() -> int:
    """Run the command line; returns the exit status, or raises SystemExit with it."""
    output = Output(as_json="--json" in sys.argv[1:])
    try:
        app()
    except InvalidInput as error:
        done = "nothing was changed" if error.kept is None else "what came before them is kept"
        output.failure(f"{done}: the input has mistakes", error.problems, kept=error.kept)
        return 2
    except AlreadyRunning as error:
        output.failure(str(error))
        return 2
    except Interrupted as error:
        output.note("interrupted; what this command had started is stopped")
        return 128 + error.signal_number
    except PilotlightError as error:
        output.failure(str(error), kept=error.kept)
        return 1
    return 0


@app.command()
def up(
    *,
    pods: Annotated[
        int, typer.Option(min=1, max=256, envvar="PILOTLIGHT_PODS", help="Runtime pods to start.")
    ] = 8,
    filename: FilesOption = [],  # noqa: B006 - typer copies it
    redis_url: Annotated[
        str | None,
        typer.Option(envvar="PILOTLIGHT_REDIS_URL", help="Your own Redis; else an embedded one."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when ready.")] = False,
    host: Annotated[
        str, typer.Option(envvar="PILOTLIGHT_HOST", help="Address the gateway listens on.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, envvar="PILOTLIGHT_PORT", help="Port of the gateway; 0: any free one."
        ),
    ] = 8080,
    slots: Annotated[
        int, typer.Option(min=1, envvar="PILOTLIGHT_SLOTS", help="Requests a pod serves at a time.")
    ] = 1,
    threads: Annotated[
        int, typer.Option(min=1, envvar="PILOTLIGHT_THREADS", help="Threads of one inference.")
    ] = 1,
    pod_memory: Annotated[
        str, typer.Option(envvar="PILOTLIGHT_POD_MEMORY", help="Budget for models in one pod.")
    ] = "4Gi",
    pod_link_rate: Annotated[
        str,
        typer.Option(
            envvar="PILOTLIGHT_POD_LINK_RATE",
            help="Rate of a pod's link to object storage, such as 100MB/s. For experiments.",
        ),
    ] = "unlimited",
    s3: Annotated[
        bool,
        typer.Option(
            "--s3/--no-s3", envvar="PILOTLIGHT_S3",
            help="The object store with the sample models; without it AWS_* name your own.",
        ),
    ] = True,
    objects: Annotated[
        Path | None,
        typer.Option(
            envvar="PILOTLIGHT_OBJECTS", show_default="objects in --home",
            help="Folder the object store serves, each folder in it a bucket; then no samples "
            "are made.",
        ),
    ] = None,
    allow_simulated_work: Annotated[
        bool,
        typer.Option(
            "--allow-simulated-work", envvar="PILOTLIGHT_ALLOW_SIMULATED_WORK",
            help="Honour x-pilotlight-simulate. For experiments.",
        ),
    ] = False,
    autoscaler: Annotated[
        bool,
        typer.Option(
            "--autoscaler/--no-autoscaler", envvar="PILOTLIGHT_AUTOSCALER",
            help="Load models ahead of requests, and let idle ones sink.",
        ),
    ] = True,
    loading: Annotated[
        str, typer.Option(envvar="PILOTLIGHT_LOADING", help=f"One of {LOADING_NAMES}.")
    ] = "predictive",
    min_pods: Annotated[
        int | None,
        typer.Option(
            min=0, envvar="PILOTLIGHT_MIN_PODS",
            help="Scale between so many pods and --pods; 0: none while nobody asks. "
            "Without it all run.",
        ),
    ] = None,
    pod_idle: Annotated[
        float,
        typer.Option(min=0.1, envvar="PILOTLIGHT_POD_IDLE",
                     help="Seconds the last pod stays after the last request."),
    ] = 120.0,
    pod_stable: Annotated[
        float,
        typer.Option(min=0.1, envvar="PILOTLIGHT_POD_STABLE",
                     help="Seconds fewer pods must be enough before one goes."),
    ] = 60.0,
    pool: PoolOption = "default",
    namespace: NamespaceOption = None,
    home: HomeOption = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Start the platform on this machine; Ctrl-C stops it and leaves nothing behind."""
    choice = autoscaler_choice(
        loading, pods=pods, min_pods=min_pods, pod_idle_s=pod_idle, pod_stable_s=pod_stable
    )
    at = StateDir.of(home)
    settings = PlatformSettings(
        home=at,
        objects=(objects or at.objects).expanduser().absolute(),
        pods=pods,
        pod=LocalPodSettings(
            slots=slots,
            threads=threads,
            memory_bytes=parse_bytes(pod_memory, field="--pod-memory"),
            link_bytes_per_s=parse_rate(pod_link_rate, field="--pod-link-rate"),
            allow_simulated_work=allow_simulated_work,
        ),
        host=host,
        port=port,
        redis_url=redis_url,
        s3=s3,
        pool=pool,
        autoscaler=choice if autoscaler else None,
    )
    up_command.up(settings, Output(json_), files=filename, detach=detach, namespace=namespace)


@app.command()
def down(*, home: HomeOption = None, json_: JsonOption = False) -> None:
    """Stop the platform of a home folder."""
    up_command.down(PlatformTarget.of(home).home, Output(json_))


@app.command()
def apply(
    *,
    filename: FilesOption,
    namespace: NamespaceOption = None,
    home: HomeOption = None,
    redis_url: RedisOption = None,
    pool: PoolOption = "default",
    json_: JsonOption = False,
) -> None:
    """Declare models from InferenceService YAML; nothing while any of it has a mistake."""
    target = PlatformTarget.of(home, redis_url=redis_url, pool=pool)
    asyncio.run(apply_command.apply(target, Output(json_), filename, namespace))


@app.command()
def delete(
    names: Annotated[list[str] | None, typer.Argument(help="NAME or NAMESPACE/NAME")] = None,
    *,
    filename: FilesOption = [],  # noqa: B006 - typer copies it
    namespace: NamespaceOption = None,
    home: HomeOption = None,
    redis_url: RedisOption = None,
    pool: PoolOption = "default",
    json_: JsonOption = False,
) -> None:
    """Withdraw models, by name or by the files that declared them."""
    if bool(names) == bool(filename):
        raise InvalidInput(["give either names or -f FILE"])
    wanted = model_names(names or [], namespace)
    if filename:
        wanted = [spec.name for spec in apply_command.read_models(filename, namespace)]
    target = PlatformTarget.of(home, redis_url=redis_url, pool=pool)
    asyncio.run(apply_command.delete(target, Output(json_), wanted))


@get_app.command("models")
@get_app.command("model", hidden=True)
@get_app.command("isvc", hidden=True)
@get_app.command("inferenceservices", hidden=True)
def get_models(
    names: Annotated[list[str] | None, typer.Argument(help="Only these.")] = None,
    *,
    namespace: NamespaceOption = None,
    home: HomeOption = None,
    redis_url: RedisOption = None,
    pool: PoolOption = "default",
    json_: JsonOption = False,
) -> None:
    """Models of all namespaces (or of -n): ready, policy, where each is warm."""
    target = PlatformTarget.of(home, redis_url=redis_url, pool=pool)
    wanted = model_names(names or [], namespace)
    asyncio.run(get.show_models(target, Output(json_), wanted, namespace))


@get_app.command("pods")
@get_app.command("pod", hidden=True)
def get_pods(
    names: Annotated[list[str] | None, typer.Argument(help="Only these.")] = None,
    *,
    home: HomeOption = None,
    redis_url: RedisOption = None,
    pool: PoolOption = "default",
    json_: JsonOption = False,
) -> None:
    """Pods: node, phase, slots, warm models, bytes per tier."""
    target = PlatformTarget.of(home, redis_url=redis_url, pool=pool)
    asyncio.run(get.show_pods(target, Output(json_), names or []))


@app.command()
def predict(
    name: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...")] = None,
    *,
    image: Annotated[list[Path], typer.Option(help="An image file; several are one batch.")] = [],  # noqa: B006
    data: Annotated[
        str | None, typer.Option(help="The whole request body: JSON, @FILE, or - for stdin.")
    ] = None,
    v2: Annotated[
        bool, typer.Option("--v2/--v1", help="Open Inference Protocol, or V1.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help="Routing policy of this request.")] = None,
    deadline_ms: Annotated[int | None, typer.Option(min=1, help="Give up after this.")] = None,
    namespace: NamespaceOption = None,
    home: HomeOption = None,
    gateway: GatewayOption = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Ask a model through the gateway."""
    question = predict_command.PredictionRequest(
        texts=texts or [],
        images=image,
        data=data,
        protocol="v2" if v2 else "v1",
        policy=policy,
        deadline_ms=deadline_ms,
    )
    target = PlatformTarget.of(home, gateway=gateway)
    [model] = model_names([name], namespace)
    asyncio.run(predict_command.predict(target, Output(json_), model, question))


@app.command()
def explain(
    request_id: Annotated[str, typer.Argument(help="The answer's x-request-id.")],
    *,
    home: HomeOption = None,
    gateway: GatewayOption = None,
    json_: JsonOption = False,
) -> None:
    """Why a request went where it went: candidates, estimates, the choice."""
    asyncio.run(
        predict_command.explain(PlatformTarget.of(home, gateway=gateway), Output(json_), request_id)
    )


@app.command("autoscaler")
def run_autoscaler(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done now, and do nothing.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say for each model what the plan rests on.")
    ] = False,
    loading: Annotated[
        str, typer.Option(help=f"Loading policy to plan with: {LOADING_NAMES}.")
    ] = "predictive",
    home: HomeOption = None,
    redis_url: RedisOption = None,
    pool: PoolOption = "default",
    json_: JsonOption = False,
) -> None:
    """What the autoscaler has done and why; with --dry-run, what it would do now."""
    target = PlatformTarget.of(home, redis_url=redis_url, pool=pool)
    asyncio.run(explain_plans(target, Output(json_), loading, dry_run=dry_run, explain=explain))


@app.command("profile")
def profile_model(
    name: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME")],
    *,
    pod: Annotated[str | None, typer.Option(help="Where; else the idlest that holds it.")] = None,
    max_batch_size: Annotated[
        int, typer.Option(min=1, max=1024, help="Largest batch to try.")
    ] = 64,
    tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Length of the texts.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Inferences per size.")] = 5,
    namespace: NamespaceOption = None,
    home: HomeOption = None,
    redis_url: RedisOption = None,
    pool: PoolOption = "default",
    json_: JsonOption = False,
) -> None:
    """Find a model's best batch size: latency, throughput and memory by size, kept for its pods."""
    target = PlatformTarget.of(home, redis_url=redis_url, pool=pool)
    [model] = model_names([name], namespace)
    plan = {"most_rows": max_batch_size, "tokens": tokens, "repeats": repeats}
    asyncio.run(profile.profile(target, Output(json_), model, pod=pod, plan=plan))


@app.command()
def demo(
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Liu's workloads at the thesis's durations (slower).")
    ] = False,
    home: HomeOption = None,
    json_: JsonOption = False,
) -> None:
    """The main job, end to end: deploy, invoke, Liu's workloads; ends by itself."""
    run_demo(StateDir.of(home), Output(json_), full=full)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def controller(context: typer.Context) -> None:
    """Run the controller in a Kubernetes cluster: InferenceServices into the registry and back."""
    from autoscaler.kubernetes.run import main as run_controller  # its libraries are an extra

    run_controller(context.args)


@app.command("scale")
def scale_pool(
    pool: Annotated[str, typer.Argument(help="The pool's name, as in its label.")],
    *,
    pods: Annotated[int, typer.Option(min=0, help="How many pods.")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where its InferenceService is, if known.")
    ] = "",
    redis_url: RedisOption = None,
    json_: JsonOption = False,
) -> None:
    """Set the number of a pool's pods in the cluster of the kubeconfig, within its bounds."""
    from pilotlight.commands.scale import scale  # its libraries are an extra

    target = PlatformTarget.of(None, redis_url=redis_url, pool=pool)
    asyncio.run(scale(target, Output(json_), pool, pods=pods, namespace=namespace))


@app.command("make-model")
def make_model(
    kind: Annotated[str, typer.Argument(help="Such as t5-small, bert-base, vit-base, tiny-t5.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    *,
    json_: JsonOption = False,
) -> None:
    """Make a model of a true architecture with random weights, without any download."""
    if kind not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise InvalidInput([f"KIND must be one of {known}, was {kind!r}"])
    output = Output(json_)
    output.note(f"making {kind} in {folder}: large ones take a minute")
    made = subprocess.run(
        make_model_command(kind, folder),
        env=python_environment(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        raise PilotlightError(f"cannot make {kind} in {folder}; the reason is above")
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    output.result(
        {"kind": kind, "folder": str(folder), "bytes": size}, made.stdout.strip().splitlines()
    )
