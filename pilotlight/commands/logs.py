"""`logs`, `autoscaler`: what a running platform has written."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import NotFound
from pilotlight.output import Output, format_age
from pilotlight.state_dir import StateDir
from registry.domain.records import ActionOutcome, ActionRecord, action_document
from registry.redis.reports import AutoscalerLog

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


_FORGOTTEN_S = 600.0
"""Age from which an action without an outcome is taken for one whose autoscaler ended."""


@app.command()
@flags.addresses(*flags.REGISTRY)
async def autoscaler(target: PlatformTarget, output: Output) -> None:
    """Print the autoscaler's latest actions, with reasons and outcomes."""
    async with target.registry() as registry:
        records = await AutoscalerLog(registry).records()
    if output.as_json:
        output.result([action_document(each) for each in records.history])
        return
    if not records.history:
        output.note("no actions of the autoscaler yet")
        return
    output.table(
        ("AGE", "ACTION", "OF", "POD", "TIER", "REASON", "WHY", "OUTCOME"),
        [
            (
                format_age(records.read_at_s - each.at_s),
                each.verb,
                each.subject,
                each.pod or "-",
                each.tier or "-",
                each.reason,
                each.detail,
                _outcome(each, records.read_at_s),
            )
            for each in records.history
        ],
        optional=("TIER", "REASON"),
    )


def _outcome(action: ActionRecord, now_s: float) -> str:
    if action.outcome != ActionOutcome.BEGUN:
        return f"{action.outcome} {action.error}".strip()
    return "in progress" if now_s - action.at_s < _FORGOTTEN_S else "unknown: no end was recorded"
