"""`load run`: flags. The libraries come with an extra, imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import requires_extra
from pilotlight.output import Output
from pilotlight.state_dir import StateDir

app = typer.Typer()
runs = typer.Typer(name="load", no_args_is_help=True, help="Play traces against a gateway.")
app.add_typer(runs)


@runs.callback()
def _load() -> None:
    """Play traces against a gateway or any KServe predictor."""


@runs.command()
def run(
    *,
    trace: Annotated[
        str, typer.Option(help="The arrivals: a file or a generator, see docs/load.md.")
    ],
    url: Annotated[
        str | None,
        flags.setting(
            "GATEWAY",
            "URL of a gateway or of any KServe predictor.",
            show_default="the gateway of --home",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Parquet file to write, one row per request.")
    ] = Path("run.parquet"),
    protocol: Annotated[
        str, typer.Option(help="Protocol of the requests: v1, v2 or openai.")
    ] = "v1",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Routing policy of all requests, or selection policy of applications. Default: "
            "their own."
        ),
    ] = None,
    payload: Annotated[
        list[str],
        typer.Option(
            help="Request body of a model: MODEL=FILE (an image or a JSON body), MODEL=text or "
            "MODEL=image. Repeat for several. Default: what the model's metadata says, else text."
        ),
    ] = [],  # noqa: B006 - typer copies it
    examples: Annotated[
        list[str],
        typer.Option(
            help="Labelled examples to send to an application: APPLICATION=FILE. Responses are "
            "checked; implies --protocol v2. Repeat for several."
        ),
    ] = [],  # noqa: B006 - typer copies it
    host_header: Annotated[
        str | None, typer.Option(help="Host header to send: '{model}.{tenant}.example.com'.")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that send requests.")
    ] = 1,
    duration: Annotated[
        str | None, typer.Option(help="Play only the arrivals before this time: 90s, 10m.")
    ] = None,
    max_in_flight: Annotated[
        int,
        typer.Option(
            min=1,
            help="Limit of concurrent requests, over all processes. Requests beyond it are "
            "recorded but not sent.",
        ),
    ] = 4096,
    timeout: Annotated[
        str, typer.Option(help="Timeout of one request, until its whole response is read.")
    ] = "300s",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of generated traces and request bodies.")
    ] = 0,
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            help="Namespace of all models of the trace: `|tenant=NAMESPACE` after it.",
        ),
    ] = None,
    overwrite: flags.Overwrite = False,
    home: flags.Home = None,
    key: flags.Key = "",
    json_: flags.Json = False,
) -> None:
    """Send a trace's requests at their times (open loop) and record each of them."""
    with requires_extra("load"):
        from load.generator.settings import RunSettings
        from pilotlight.commands.load_play import (
            RunStart,
            read_example_options,
            read_settings,
            run_load,
        )

    target = PlatformTarget(StateDir.of(home))
    plain = RunSettings(
        f"({trace})|tenant={namespace}" if namespace else trace,
        url or target.gateway_url,
        host_header=host_header,
        policy=policy,
        processes=processes,
        seed=seed,
        max_in_flight=max_in_flight,
        key=key,
    )
    settings = read_settings(
        plain,
        protocol="v2" if examples else protocol,
        duration=duration,
        timeout=timeout,
        payloads=payload,
        examples=read_example_options(examples, target, namespace),
    )
    start = RunStart(target) if url is None else None
    run_load(settings, output, Output(json_), overwrite=overwrite, start=start)
