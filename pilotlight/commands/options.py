"""Flags that several verbs share: each with its environment variable, default and meaning."""

from pathlib import Path
from typing import Annotated

import typer

JsonOption = Annotated[
    bool, typer.Option("--json", help="Machine-readable on standard output, nothing else there.")
]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", envvar="PILOTLIGHT_HOME", show_default="~/.pilotlight",
        help="Folder of the platform: lock, state, logs, caches.",
    ),
]  # fmt: skip
RedisOption = Annotated[
    str | None,
    typer.Option(
        "--redis-url", envvar="PILOTLIGHT_REDIS_URL",
        help="The registry; without it, that of the platform in --home.",
    ),
]  # fmt: skip
GatewayOption = Annotated[
    str | None,
    typer.Option(
        "--gateway", envvar="PILOTLIGHT_GATEWAY",
        help="Address of the gateway; without it, that of the platform in --home.",
    ),
]  # fmt: skip
PoolOption = Annotated[
    str,
    typer.Option("--pool", envvar="PILOTLIGHT_POOL", help="Pool of pods, with --redis-url."),
]  # fmt: skip
NamespaceOption = Annotated[
    str | None, typer.Option("-n", "--namespace", help="Namespace of names without one.")
]
FilesOption = Annotated[
    list[str],
    typer.Option(
        "-f", "--filename", help="InferenceService YAML: a file, a folder, or - for standard input."
    ),
]
