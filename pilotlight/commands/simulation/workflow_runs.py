"""`simulate --workflows`: workflows on simulated devices, placed by the live policies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from load.experiments.workflows.applications import APPLICATIONS
from load.experiments.workflows.experiment import placement_tasks
from load.experiments.workflows.simulation import POLICIES, simulate_workflows
from pilotlight.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from load.experiments.workflows.simulation import WorkflowTask
    from pilotlight.output import Output


@dataclass(frozen=True, slots=True)
class WorkflowPlan:
    """What to simulate, as the flags say."""

    applications: str
    trace: Path
    """Requests by minute and model: columns minute, model, count; gzip."""
    policies: str
    """`own`: all."""
    seed: int
    minutes: int


def run_workflow_simulations(plan: WorkflowPlan, output: Output) -> None:
    """One simulation per application and policy. Raises InvalidInput with all mistakes."""
    found = []
    for task in _tasks(plan):
        try:
            result = simulate_workflows(task)
        except (OSError, EOFError, KeyError, ValueError) as error:
            raise InvalidInput([f"--trace {plan.trace}: {error!r}"]) from error
        found.append({"application": task.application, "policy": task.policy, **asdict(result)})
    output.result(found)
    if output.as_json:
        return
    output.table(
        ["APPLICATION", "POLICY", "REQUESTS", "MEAN, S", "P95, S", "LOADS", "UNUSED", "BATCH",
         "FORESEEN"],
        [
            [each["application"], each["policy"], str(each["requests"]), f"{each['mean_s']:.3f}",
             f"{each['p95_s']:.3f}", str(each["loads"]), str(each["unused_loads"]),
             f"{each['batch']:.2f}", f"{each['predicted_share']:.0%}"]
            for each in found
        ],
        title="Simulated: no part ran live",
    )  # fmt: skip


def _tasks(plan: WorkflowPlan) -> list[WorkflowTask]:
    applications = plan.applications.split(",")
    policies = POLICIES if plan.policies == "own" else plan.policies.split(",")
    problems = [
        f"{flag} must be one or more of {', '.join(allowed)}, was {name!r}"
        for flag, names, allowed in (
            ("--workflows", applications, tuple(APPLICATIONS)), ("--policy", policies, POLICIES)
        )
        for name in names
        if name not in allowed
    ]  # fmt: skip
    if not plan.trace.is_file():
        problems.append(f"--trace must name a file of requests by minute, was {plan.trace}")
    if problems:
        raise InvalidInput(problems)
    return placement_tasks(
        plan.trace, [plan.seed], plan.minutes, applications=applications, policies=policies
    )
