"""The flags of `load run`, `report`, `simulate` and `experiment`.

What they need is an extra, and imported when they run.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands.autoscaler import LOADING_NAMES
from pilotlight.commands.options import HomeOption, JsonOption
from pilotlight.commands.target import PlatformTarget
from pilotlight.output import Output
from pilotlight.state_dir import StateDir

OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output, if there is one.")
]
SideBySideOption = Annotated[
    int | None,
    typer.Option(min=1, max=256, show_default="a core each", help="Simulations side by side."),
]

load_app = typer.Typer(no_args_is_help=True, help="Play traces against a gateway.")


@load_app.callback()
def _load() -> None:
    """Play traces against a gateway or any KServe predictor."""


@load_app.command("run")
def run_command(
    *,
    trace: Annotated[str, typer.Option(help="A file or generator; see docs/load.md.")],
    url: Annotated[
        str | None,
        typer.Option(
            envvar="PILOTLIGHT_GATEWAY", show_default="the gateway of --home",
            help="A gateway, or any KServe predictor.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Parquet file for one row per request.")
    ] = Path("run.parquet"),
    protocol: Annotated[str, typer.Option(help="v1, v2, openai or grpc.")] = "v1",
    policy: Annotated[str | None, typer.Option(help="Routing policy of all requests.")] = None,
    payload: Annotated[
        list[str],
        typer.Option(
            help="MODEL=FILE (a picture, or a JSON body), MODEL=text or MODEL=image; without it "
            "the model's metadata tell, else it is text."
        ),
    ] = [],  # noqa: B006 - typer copies it
    host_header: Annotated[
        str | None, typer.Option(help="Host to ask for, such as '{model}.{tenant}.example.com'.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=256, help="Processes that send.")] = 1,
    duration: Annotated[
        str | None, typer.Option(help="Only arrivals before this, such as 90s or 10m.")
    ] = None,
    max_in_flight: Annotated[
        int,
        typer.Option(
            min=1,
            help="Requests under way at most, of all processes; more are not sent, but recorded.",
        ),
    ] = 4096,
    timeout: Annotated[str, typer.Option(help="Longest wait for a whole answer.")] = "300s",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of a generated trace and of the contents.")
    ] = 0,
    overwrite: OverwriteOption = False,
    home: HomeOption = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Send a trace's requests at its times, open loop, and record each of them."""
    from pilotlight.commands.load import LoadRunOptions, run_load

    wish = LoadRunOptions(
        trace=trace,
        url=url or PlatformTarget.of(home).gateway_url,
        output=output,
        protocol=protocol,
        policy=policy,
        host_header=host_header,
        processes=processes,
        duration=duration,
        seed=seed,
        max_in_flight=max_in_flight,
        timeout=timeout,
        payloads=payload,
        overwrite=overwrite,
    )
    run_load(wish, Output(json_))


def report_runs(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="FILE or NAME=FILE")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the page and the plots.")
    ] = Path("report"),
    json_: JsonOption = False,
) -> None:
    """Compare 1 to 8 runs: one HTML page without outside resources, and a PNG of each plot."""
    from pilotlight.commands.report import report

    report(runs, output, Output(json_))


def simulate(
    *,
    cluster: Annotated[Path, typer.Option(metavar="FILE", help="The cluster, as YAML.")],
    trace: Annotated[str, typer.Option(help="The arrivals: a file, or the name of a trace.")],
    policy: Annotated[
        str, typer.Option(metavar="P[,P…]", help="Routing policies; own: each model's own.")
    ] = "own",
    sweep: Annotated[
        str | None,
        typer.Option(metavar="KEY=A,B…", help="Values of a key, such as nodes.0.count=4,8."),
    ] = None,
    loading: Annotated[
        str,
        typer.Option(
            metavar="L[,L…]",
            help="Policies of the autoscaler, which load models ahead of requests and let idle "
            f"ones sink: none, {LOADING_NAMES}. Pods stay as the cluster file says: plans that "
            "set their number are left out. Nothing is forecast in a run's first 60 s.",
        ),
    ] = "none",
    loading_value: Annotated[
        float | None,
        typer.Option(
            metavar="V",
            show_default="the policy's own",
            help="The loading policy's parameter: price of a device's memory in seconds saved "
            "per GB and hour (predictive), minutes (keep-alive), GB per device (greedy-dual), "
            "range in whole minutes (hybrid-histogram).",
        ),
    ] = None,
    tick: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Between two plans of a loading policy, as live; fewer plans take less time.",
        ),
    ] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="One seed, one result.")] = 0,
    processes: SideBySideOption = None,
    allow_unknown: Annotated[
        bool,
        typer.Option("--allow-unknown", help="Models that the cluster lacks are answered 404."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the records, as Parquet.")
    ] = None,
    overwrite: OverwriteOption = False,
    json_: JsonOption = False,
) -> None:
    """Run a trace through a simulated cluster with the policies of the gateway."""
    from pilotlight.commands.simulate import SimulationPlan, run_simulations

    plan = SimulationPlan(
        cluster=cluster,
        trace=trace,
        policies=policy,
        sweep=sweep,
        seed=seed,
        processes=processes or _cores(),
        allow_unknown=allow_unknown,
        loading=loading,
        loading_value=loading_value,
        tick_s=tick,
        out=out,
        overwrite=overwrite,
    )
    run_simulations(plan, Output(json_))


def experiment(
    name: Annotated[str | None, typer.Argument(help="Without it, all are listed.")] = None,
    *,
    live: Annotated[
        bool,
        typer.Option(
            "--live/--simulated-only", help="Also run on a real platform what can be; or not."
        ),
    ] = True,
    seed: Annotated[
        list[int], typer.Option(min=0, help="Repeat for several; without it, the experiment's own.")
    ] = [],  # noqa: B006 - typer copies it
    model: Annotated[
        list[str],
        typer.Option(
            help="Of liu-simple --live, repeat for several: t5-small (without it), t5-base, "
            "t5-large. What is missing is made: 0.9 and 3 GB."
        ),
    ] = [],  # noqa: B006 - typer copies it
    quick: Annotated[bool, typer.Option("--quick", help="A small part of it, in seconds.")] = False,
    processes: SideBySideOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for tables and plots.")] = Path(
        "experiments"
    ),
    overwrite: OverwriteOption = False,
    home: HomeOption = None,
    json_: JsonOption = False,
) -> None:
    """Run an experiment of the documentation again: its tables, beside the literature's figures."""
    from pilotlight.commands.experiment import ExperimentOptions, list_experiments, run_experiment
    from pilotlight.live_experiments.live_platform import LiveDemo

    output = Output(json_)
    if name is None:
        list_experiments(output)
        return
    platform = LiveDemo(StateDir.of(home), output) if live else None
    wish = ExperimentOptions(
        name, tuple(seed), quick, out, processes or _cores(), platform, tuple(model), overwrite
    )
    run_experiment(wish, output)


def _cores() -> int:
    return os.cpu_count() or 1
