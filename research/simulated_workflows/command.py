"""`simulate-workflows`: workflows on simulated devices, placed by the live policies."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.errors import InvalidInput
from pilotlight.output import Output
from research.simulated_workflows.applications import APPLICATIONS
from research.simulated_workflows.simulation import POLICIES, placement_tasks, simulate_workflows

app = typer.Typer()


@app.command("simulate-workflows")
def simulate(
    applications: Annotated[
        str,
        typer.Argument(
            metavar="A[,A…]",
            help="Applications of the experiment `workflows`: gill, knowledge-card, debate, mix.",
        ),
    ],
    *,
    trace: Annotated[
        Path, typer.Option(help="Requests by minute and model: columns minute, model, count; gzip.")
    ],
    policy: Annotated[
        str, typer.Option(metavar="P[,P…]", help="Scheduling policies, one run each.")
    ] = ",".join(POLICIES),
    minutes: Annotated[int, typer.Option(min=1, max=120, help="Minutes of the trace.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed; equal seeds give equal results.")] = 0,
    json_: flags.Json = False,
) -> None:
    """Run applications' workflows on eight simulated devices."""
    output = Output(json_)
    chosen = _chosen(applications.split(","), policy.split(","), trace)
    found = []
    for task in placement_tasks(
        trace, [seed], minutes, applications=applications.split(","), policies=chosen
    ):
        try:
            result = simulate_workflows(task)
        except (OSError, EOFError, KeyError, ValueError) as error:
            raise InvalidInput([f"--trace {trace}: {error!r}"]) from error
        found.append({"application": task.application, "policy": task.policy, **asdict(result)})
    output.result(found)
    if output.as_json:
        return
    output.table(
        [
            "APPLICATION",
            "POLICY",
            "REQUESTS",
            "MEAN, S",
            "P95, S",
            "LOADS",
            "UNUSED",
            "BATCH",
            "FORESEEN",
        ],
        [
            [
                each["application"],
                each["policy"],
                str(each["requests"]),
                f"{each['mean_s']:.3f}",
                f"{each['p95_s']:.3f}",
                str(each["loads"]),
                str(each["unused_loads"]),
                f"{each['batch']:.2f}",
                f"{each['predicted_share']:.0%}",
            ]
            for each in found
        ],
        title="Simulated: no part ran live",
    )


def _chosen(applications: Sequence[str], policies: Sequence[str], trace: Path) -> Sequence[str]:
    """The policies, where all flags are right."""
    problems = [
        f"{flag} must be one or more of {', '.join(allowed)}, was {name!r}"
        for flag, given, allowed in (
            ("APPLICATIONS", applications, tuple(APPLICATIONS)),
            ("--policy", policies, POLICIES),
        )
        for name in given
        if name not in allowed
    ]
    if not trace.is_file():
        problems.append(f"--trace must name a file of requests by minute, was {trace}")
    if problems:
        raise InvalidInput(problems)
    return policies
