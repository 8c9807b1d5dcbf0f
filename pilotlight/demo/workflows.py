"""The demo of workflows: two applications on two pods that cannot hold all of their models.

MiniLM embeds, a classifier trained on this machine chooses a domain, GPT-2 with random weights
writes. Each policy runs the same requests; then a pod is killed while runs are under way.
"""

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any, Final

from pilotlight.demo.session import LiveSession, gather_requests, live_session
from pilotlight.errors import PilotlightError, RequestFailed
from pilotlight.output import Output, ProgressReporter
from pilotlight.platform.settings import PlatformSettings
from pilotlight.platform.supervisor import log_to_file
from pilotlight.sample_models.samples import WORKFLOW_SAMPLES, prepare_domain_head, prepare_samples
from pilotlight.state_dir import StateDir
from registry.domain.model import ModelName, ModelSpec, Task

_FILES: Final = Path(__file__).with_name("workflow_files")
_WORKFLOWS: Final = ("expert", "debate")
_QUESTIONS: Final = (
    ("expert", "How do I cook rice?"),
    ("debate", "Is the sky blue at night?"),
    ("expert", "How far away is the moon?"),
    ("expert", "Which museums are there in Paris?"),
    ("debate", "Should I salt the water for pasta?"),
    ("expert", "What goes into a good soup?"),
)
_ALONE: Final = tuple(text for name, text in _QUESTIONS if name == "expert")[:3]
"""Of three domains, one after the other: each needs another writer than the one before."""
_ROUNDS: Final = 2
_INTERVAL_S: Final = 0.4
"""Between two requests: some overlap, as batches across applications need."""
_POLL_S: Final = 0.02
_FIRST: Final = ("round-robin", "round-robin", "speculative")
"""So that the disks of both pods have all models: loads from storage take longer than any step."""
POLICIES: Final = ("greedy", "speculative")
_MEMORY_BYTES: Final = 1_000_000_000
"""Of a pod: one of the four writers with its cache, MiniLM and the classifier."""


def run_workflow_demo(state_dir: StateDir, output: Output) -> None:
    """Run the demo with its state in a subfolder; raises PilotlightError if it failed."""
    settings = PlatformSettings(
        state_dir=StateDir(state_dir.root / "demo-workflows"),
        objects=state_dir.objects,
        port=0,
        pods=2,
        pod={"memory_bytes": _MEMORY_BYTES, "retire_grace": 0.1},
    )
    if settings.state_dir.is_locked():
        raise settings.state_dir.already_running_error()
    prepare_samples(settings.objects, output, WORKFLOW_SAMPLES)
    prepare_domain_head(settings.objects, output)
    log_to_file(settings)
    output.note("The demo takes 2 to 3 minutes.")
    report = asyncio.run(_run(settings, output))
    print_report(output, report)
    if failed := [text for text, is_met in report.expectations() if not is_met]:
        raise PilotlightError(f"not seen in this run: {'; '.join(failed)}")


async def _run(settings: PlatformSettings, output: Output) -> "WorkflowReport":
    started_s = time.monotonic()
    reporter = ProgressReporter(output)
    async with live_session(settings, reporter.on_progress) as session:
        reporter.close_bar()
        reporter.is_quiet = True
        output.note(f"2 pods ready after {time.monotonic() - started_s:.0f} s")
        await session.create_models(_specs())
        for name in _WORKFLOWS:
            await _deploy(session, name)
        output.note("first runs, from which the scheduler learns")
        for policy in _FIRST:
            await _run_all(session, policy)
        by_policy = []
        for policy in POLICIES:
            documents = []
            for number in range(_ROUNDS):
                output.note(f"{policy}, {len(_QUESTIONS)} runs, {number + 1} of {_ROUNDS}")
                documents += await _run_all(session, policy)
            output.note(f"{policy}, {len(_ALONE)} runs, each alone")
            for question in _ALONE:
                documents.append(await _document(session, "expert", question, policy))
            by_policy.append(PolicyRuns(policy, tuple(documents)))
        output.note("a pod is killed while its step runs")
        survivor = await _outlive_pod(session)
    return WorkflowReport(tuple(by_policy), survivor, time.monotonic() - started_s)


def _specs() -> list[ModelSpec]:
    writers = ("writer", "writer-cooking", "writer-science", "writer-travel")
    return [
        ModelSpec(
            ModelName("default", "embed"), "s3://models/all-minilm-l6-v2", task=Task.TEXT_EMBEDDING
        ),
        ModelSpec(ModelName("default", "domain"), "s3://models/domain-head", format="pytorch"),
        *(ModelSpec(ModelName("default", name), "s3://models/gpt2-small") for name in writers),
    ]


async def _deploy(session: LiveSession, name: str) -> None:
    source = await asyncio.to_thread((_FILES / f"{name}.py").read_bytes)
    response = await session.client.put(f"/v1/workflows/{name}", content=source)
    if not response.is_success:
        raise RequestFailed(f"workflow {name}: {response.text[:300]}")


async def _run_all(session: LiveSession, policy: str) -> list[dict[str, Any]]:
    """The documents of one run per question, begun one after the other at a fixed interval."""

    async def run_later(number: int, name: str, question: str) -> dict[str, Any]:
        await asyncio.sleep(number * _INTERVAL_S)
        return await _document(session, name, question, policy)

    return await gather_requests(
        *(run_later(number, *each) for number, each in enumerate(_QUESTIONS))
    )


async def _document(session: LiveSession, name: str, question: str, policy: str) -> dict[str, Any]:
    headers = {"x-pilotlight-scheduling": policy}
    answer = await session.request(f"/v1/workflows/{name}:run", {"question": question}, headers)
    return await _read(session, f"/v1/workflows/{name}/runs/{answer.body['id']}")


async def _read(session: LiveSession, location: str) -> dict[str, Any]:
    document: dict[str, Any] = (await session.client.get(location)).json()
    return document


async def _outlive_pod(session: LiveSession) -> dict[str, Any]:
    """A run whose pod is killed while it executes the run's first step."""
    response = await session.client.post(
        "/v1/workflows/expert:run",
        json={"question": _QUESTIONS[0][1]},
        headers={"prefer": "respond-async"},
    )
    location = response.headers["location"]
    pod = await _pod_of_first_step(session, location)
    os.kill(session.platform.cluster.state.pods[pod].info.process_id, signal.SIGKILL)
    async with asyncio.timeout(120):
        while True:
            document = await _read(session, location)
            if document["status"] != "running":
                return {**document, "killed": pod}
            await asyncio.sleep(_POLL_S)


async def _pod_of_first_step(session: LiveSession, location: str) -> str:
    async with asyncio.timeout(60):
        while True:
            steps: Sequence[Any] = (await _read(session, location)).get("steps", ())
            if steps and steps[0]["state"] == "running" and steps[0]["pod"]:
                return str(steps[0]["pod"])
            await asyncio.sleep(_POLL_S)


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
        runs.policy,
        f"{mean(runs.seconds('expert')):.2f}",
        f"{mean(runs.seconds('debate')):.2f}",
        f"{cold} of {len(steps)}",
        f"{predicted} of {len(steps)}",
        str(preloads),
    )
