"""The report of the demo of workflows: what its runs' documents show."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import itemgetter
from statistics import mean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pilotlight.output import Output


@dataclass(frozen=True, slots=True)
class PolicyRuns:
    """The runs of one policy, as the scheduler documents them."""

    policy: str
    documents: tuple[Mapping[str, Any], ...]

    def seconds(self, workflow: str) -> list[float]:
        return [each["seconds"] for each in self.documents if each["workflow"] == workflow]


@dataclass(frozen=True, slots=True)
class WorkflowReport:
    policies: tuple[PolicyRuns, ...]
    survivor: Mapping[str, Any]
    """The run whose pod was killed."""
    duration_s: float

    def expectations(self) -> list[tuple[str, bool]]:
        """What the demo shows, and whether this run of it did."""
        return [
            ("one inference holds steps of two applications", self.shared_batch() is not None),
            ("a load ahead ended before its step was sent", self.early_preload() is not None),
            ("a run outlived its pod", self.survivor["status"] == "succeeded"),
        ]

    def shared_batch(self) -> str | None:
        """A sentence about one inference with steps of several workflows."""
        by_batch: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
        for document, step in self._steps():
            if step.get("batch"):
                by_batch[step["pod"], step["batch"]].append((document["workflow"], step))
        for (pod, batch), members in by_batch.items():
            names = sorted({name for name, _ in members})
            if len(names) > 1:
                model = members[0][1]["model"]
                return (
                    f"one inference of {model} at {pod} ({batch.partition(';')[2]}) had "
                    f"{len(members)} steps of {' and '.join(names)}"
                )
        return None

    def early_preload(self) -> str | None:
        """A sentence about a load that ended before the step for which it was begun.

        One for a step that was only predicted, if there is one; else for a step that was called
        already, and waited for its input.
        """
        found = [
            (not preload["predicted"], step, step["sent_s"] - preload["ended_s"])
            for document, step in self._steps()
            for preload in document["preloads"]
            if (preload["pod"], preload["model"]) == (step["pod"], step["model"])
            and preload["ended_s"] is not None
            and preload["ended_s"] <= step["sent_s"]
        ]
        if not found:
            return None
        is_called, step, ahead_s = min(found, key=itemgetter(0))
        kind = "step that waited for its input" if is_called else "predicted step"
        return (
            f"{step['model']} was loaded at {step['pod']} for a {kind}, "
            f"{ahead_s:.2f} s before the step was sent there"
        )

    def _steps(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        for runs in self.policies:
            for document in runs.documents:
                for step in document["steps"]:
                    if step["state"] == "done":
                        yield document, step


def print_report(output: Output, report: WorkflowReport) -> None:
    """Tables and sentences, or with `--json` the documents."""
    if output.as_json:
        output.result(
            {
                "policies": {each.policy: list(each.documents) for each in report.policies},
                "survivor": report.survivor,
                "expectations": dict(report.expectations()),
            }
        )
        return
    output.line()
    output.table(
        ("POLICY", "EXPERT", "DEBATE", "COLD STEPS", "PREDICTED", "LOADS AHEAD"),
        [_row(each) for each in report.policies],
        title="Mean seconds of a run, and its steps",
    )
    output.line()
    for sentence in (report.shared_batch(), report.early_preload()):
        if sentence is not None:
            output.line(f"- {sentence}")
    survivor = report.survivor
    pods = ", ".join(dict.fromkeys(step["pod"] for step in survivor["steps"]))
    output.line(
        f"- {survivor['killed']} was killed while it ran a step; the run {survivor['status']}, its "
        f"steps ran at {pods}"
    )
    for text, is_met in report.expectations():
        output.line(f"{'seen    ' if is_met else 'NOT SEEN'}  {text}")
    output.note(f"the demo took {report.duration_s:.0f} s")


def _row(runs: PolicyRuns) -> Sequence[str]:
    steps = [step for document in runs.documents for step in document["steps"]]
    cold = sum(step.get("start", "warm") != "warm" for step in steps)
    predicted = sum(step["predicted"] for step in steps)
    preloads = sum(len(document["preloads"]) for document in runs.documents)
    return (
        runs.policy, f"{mean(runs.seconds('expert')):.2f}", f"{mean(runs.seconds('debate')):.2f}",
        f"{cold} of {len(steps)}", f"{predicted} of {len(steps)}", str(preloads),
    )  # fmt: skip
