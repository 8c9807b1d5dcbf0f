"""`simulate --workflows`: workflows on simulated devices, placed by the live policies."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pilotlight.errors import InvalidInput
from pilotlight.output import Output
from research.simulated_workflows.applications import APPLICATIONS
from research.simulated_workflows.simulation import POLICIES, placement_tasks, simulate_workflows


def simulate(
    applications: str, *, trace: Path, policies: str, seed: int, minutes: int, output: Output
) -> None:
    """One simulation per application and policy, which commas separate; `own`: all policies.

    `trace`: requests by minute and model: columns minute, model, count; gzip. Raises InvalidInput
    with all mistakes.
    """
    chosen = _chosen(applications.split(","), policies, trace)
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


def _chosen(applications: Sequence[str], names: str, trace: Path) -> Sequence[str]:
    """The policies, where all flags are right."""
    policies = POLICIES if names == "own" else names.split(",")
    problems = [
        f"{flag} must be one or more of {', '.join(allowed)}, was {name!r}"
        for flag, given, allowed in (
            ("--workflows", applications, tuple(APPLICATIONS)),
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
