"""`logs`: what the processes of a platform on this machine have written."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.errors import NotFound
from pilotlight.output import Output
from pilotlight.state_dir import StateDir

_POLL_S = 0.2

app = typer.Typer()


@app.command()
def logs(
    name: Annotated[
        str | None, typer.Argument(help="A pod, gateway, autoscaler, redis, …; none: list them.")
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on as lines are added, until Ctrl-C.")
    ] = False,
    tail: Annotated[
        int, typer.Option(min=-1, help="Lines from the end of the log; -1: all of them.")
    ] = -1,
    home: flags.Home = None,
) -> None:
    """Print the log of one process of the platform in --home. On a cluster: kubectl logs."""
    folder = StateDir.of(home).logs
    names = sorted(path.stem for path in folder.glob("*.log")) if folder.is_dir() else []
    output = Output()
    if name is None:
        if not names:
            raise NotFound(f"no logs in {folder}: no platform has run with this --home")
        output.result(names, names)
        return
    if name not in names:
        raise NotFound(f"no log of {name!r} in {folder}; there are: {', '.join(names) or 'none'}")
    _print_log(output, folder / f"{name}.log", tail=tail, follow=follow)


def _print_log(output: Output, path: Path, *, tail: int, follow: bool) -> None:
    with path.open(encoding="utf-8", errors="replace") as log:
        lines = log.read().splitlines()
        for line in lines if tail < 0 else lines[len(lines) - min(tail, len(lines)) :]:
            output.line(line)
        rest = ""
        while follow:
            time.sleep(_POLL_S)
            *whole, rest = (rest + log.read()).split("\n")
            for line in whole:
                output.line(line)
