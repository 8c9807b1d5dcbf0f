"""Flags that several commands share: name, environment variable, default and help of each."""

from pathlib import Path
from typing import Annotated, Any

import typer


def setting(variable: str, help_text: str, *names: str, **options: Any) -> Any:
    """An option that the environment variable `PILOTLIGHT_<variable>` can also set."""
    return typer.Option(*names, envvar=f"PILOTLIGHT_{variable}", help=help_text, **options)


Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "-o", "--output", metavar="wide|json",
        help="wide: all columns, whatever the width of the terminal; json: as --json.",
    ),
]  # fmt: skip
Watch = Annotated[
    bool, typer.Option("-w", "--watch", help="Go on, and print what changes, until Ctrl-C.")
]
Home = Annotated[
    Path | None,
    setting(
        "HOME", "Folder of the platform: lock, state, logs, caches.", "--home",
        show_default="~/.pilotlight",
    ),
]  # fmt: skip
RedisUrl = Annotated[
    str | None,
    setting(
        "REDIS_URL",
        "URL of the registry's Redis. Default: the registry of the platform in --home.",
        "--redis-url",
    ),
]
Gateway = Annotated[
    str | None,
    setting(
        "GATEWAY",
        "Address of the gateway. Default: the gateway of the platform in --home.",
        "--gateway",
    ),
]
Pool = Annotated[str, setting("POOL", "Name of the pool, with --redis-url.", "--pool")]
Namespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", help="Namespace of models that are named without one."),
]
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
        min=1, max=256, show_default="one per core", help="Number of processes that simulate."
    ),
]
