"""Flags that several commands share: name, environment variable, default, help and completion."""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import click
import typer

from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, PilotlightError
from pilotlight.output import Output
from pilotlight.state_dir import StateDir
from registry.domain.cluster import ClusterState


def setting(variable: str, help_text: str, *names: str, **options: Any) -> Any:
    """An option that the environment variable `PILOTLIGHT_<variable>` can also set."""
    return typer.Option(*names, envvar=f"PILOTLIGHT_{variable}", help=help_text, **options)


Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="wide|json",
        help="wide: all columns, whatever the width of the terminal; json: as --json.",
    ),
]
Watch = Annotated[
    bool, typer.Option("-w", "--watch", help="Go on, and print what changes, until Ctrl-C.")
]


def _home(text: str) -> Path:
    if not text:
        raise typer.BadParameter("must name a folder")
    return Path(text)


Home = Annotated[
    Path | None,
    setting(
        "HOME",
        "Folder of the platform: lock, state, logs, caches.",
        "--home",
        show_default="~/.pilotlight",
        parser=_home,
        metavar="<path>",
    ),
]
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


def _check_key(key: str) -> str:
    """The key as a header carries it."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise typer.BadParameter("must be one line of ASCII characters")
    return key


Key = Annotated[
    str,
    setting(
        "KEY",
        "API key or token of the namespace, or of an operator, where the gateway needs one.",
        "--key",
        "--token",
        show_default=False,
        callback=_check_key,
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


def read_json(name: str, text: str) -> tuple[bytes, Any]:
    """JSON, @FILE or - for standard input: its content, and what it says; raises InvalidInput."""
    try:
        content = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
        content = sys.stdin.read() if text == "-" else content
        return content.encode(), json.loads(content)
    except OSError as error:
        raise InvalidInput([f"{name}: cannot read {text[1:]}: {error}"]) from error
    except ValueError as error:
        raise InvalidInput([f"{name} must be JSON, @FILE or -: {error}"]) from error


def complete_model(ctx: click.Context, incomplete: str) -> list[str]:
    """Models of the platform; those of the namespace `default`, or of -n, by their short names."""
    namespace = ctx.params.get("namespace") or "default"
    names = [
        name.name if name.namespace == namespace else str(name) for name in _cluster(ctx).models
    ]
    return sorted(name for name in names if name.startswith(incomplete))


def complete_pod(ctx: click.Context, incomplete: str) -> list[str]:
    return sorted(name for name in _cluster(ctx).pods if name.startswith(incomplete))


def _cluster(ctx: click.Context) -> ClusterState:
    """The state of the platform that the command addresses; empty if there is none."""
    given = ctx.params
    home, pool = StateDir.of(given.get("home")), given.get("pool") or "default"
    target = PlatformTarget(home, given.get("redis_url"), pool=pool)
    try:
        return asyncio.run(target.cluster())
    except PilotlightError:
        return ClusterState()


Model = Annotated[
    str,
    typer.Argument(metavar="NAME", help="NAME or NAMESPACE/NAME", autocompletion=complete_model),
]

REGISTRY: Final = ("home", "redis_url", "pool")
"""How a verb finds the registry."""
GATEWAY: Final = ("home", "gateway", "key")
"""How a verb finds the gateway."""
_ADDRESS: Final[Mapping[str, tuple[Any, Any]]] = {
    "home": (Home, None),
    "redis_url": (RedisUrl, None),
    "pool": (Pool, "default"),
    "gateway": (Gateway, None),
    "key": (Key, ""),
}
"""Type and default of a flag by its parameter."""
_LISTING: Final[Mapping[str, tuple[Any, Any]]] = {
    "watch": (Watch, False),
    "format_": (Format, None),
}
_JSON: Final[Mapping[str, tuple[Any, Any]]] = {"json_": (Json, False)}
_FORMATS: Final = ("wide", "json")


def addresses(*names: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a verb of a function, asynchronous or not, of the platform and the output.

    The verb's flags are those of the function, then the named ones of `REGISTRY` and `GATEWAY`,
    which say what platform, and `--json`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[2:]
        return verb_of(function, own, *names)

    return decorate


def verb_of(
    function: Callable[..., Any], own: Sequence[inspect.Parameter], *names: str, lists: bool = False
) -> Callable[..., None]:
    """As `addresses`; the function's own flags are these, and with `lists` those of a listing."""
    flags = {**{name: _ADDRESS[name] for name in names}, **(_LISTING if lists else {}), **_JSON}

    def verb(**given: Any) -> None:
        shared = {name: given.pop(name) for name in flags}
        places = {name: shared.pop(name) for name in names}
        target = PlatformTarget(StateDir.of(places.pop("home")), **places)
        result = function(target, _output(**shared), **given)
        if inspect.iscoroutine(result):
            asyncio.run(result)

    parameters = [*own, *(argument(name, *flag) for name, flag in flags.items())]
    verb.__name__, verb.__doc__ = function.__name__, function.__doc__
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {each.name: each.annotation for each in parameters}
    return verb


def argument(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _output(*, json_: bool, watch: bool = False, format_: str | None = None) -> Output:
    """Raises InvalidInput."""
    if format_ not in (None, *_FORMATS):
        raise InvalidInput([f"-o must be one of {', '.join(_FORMATS)}, was {format_!r}"])
    as_json = json_ or format_ == "json"
    if as_json and watch:
        raise InvalidInput(["-w prints lines of a table: leave out --json and -o json"])
    return Output(as_json, wide=format_ == "wide", watch=watch)
