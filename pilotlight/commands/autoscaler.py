"""`autoscaler`: the log of its actions."""

import typer

from pilotlight.commands import flags
from pilotlight.commands.target import PlatformTarget
from pilotlight.output import Output, format_age
from registry.domain.records import ActionOutcome, ActionRecord, action_document
from registry.redis.reports import AutoscalerLog

_FORGOTTEN_S = 600.0
"""Age from which an action without an outcome is taken for one whose autoscaler ended."""

app = typer.Typer()


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
