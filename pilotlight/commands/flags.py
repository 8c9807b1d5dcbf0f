"""Flags that several verbs share: name, environment variable, default and help of each."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home", envvar="PILOTLIGHT_HOME", show_default="~/.pilotlight",
        help="Folder of the platform: lock, state, logs, caches.",
    ),
]  # fmt: skip
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url", envvar="PILOTLIGHT_REDIS_URL",
        help="URL of the registry's Redis. Default: the registry of the platform in --home.",
    ),
]  # fmt: skip
Gateway = Annotated[
    str | None,
    typer.Option(
        "--gateway", envvar="PILOTLIGHT_GATEWAY",
        help="Address of the gateway. Default: the gateway of the platform in --home.",
    ),
]  # fmt: skip
Pool = Annotated[
    str,
    typer.Option("--pool", envvar="PILOTLIGHT_POOL", help="Name of the pool, with --redis-url."),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "-n", "--namespace", help="Namespace of models that are named without one.",
    ),
]  # fmt: skip
Files = Annotated[
    list[str],
    typer.Option(
        "-f", "--filename", help="InferenceService YAML: a file, a folder, or - for standard input."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an output that exists already.")
]
Processes = Annotated[
    int | None,
    typer.Option(
        min=1, max=256, show_default="one per core",
        help="Processes that simulate, each one run at a time.",
    ),
]  # fmt: skip
