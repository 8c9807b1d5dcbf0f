"""The demo of workflows: two applications on two pods that cannot hold all of their models.

MiniLM embeds, a classifier trained on this machine chooses a domain, GPT-2 with random weights
writes. Each policy runs the same requests; then a pod is killed while runs are under way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pilotlight.demo.workflow_report import PolicyRuns, WorkflowReport, print_report
from pilotlight.errors import ExpectationFailed, RequestFailed
from pilotlight.live_experiments.session import gather_requests, live_session
from pilotlight.output import ProgressReporter
from pilotlight.platform.settings import LocalPodSettings, PlatformSettings
from pilotlight.platform.supervisor import log_to_file
from pilotlight.sample_models.samples import (
    WORKFLOW_SAMPLES,
    prepare_domain_head,
    prepare_samples,
)
from pilotlight.state_dir import StateDir
from registry.domain.model import ModelName, ModelSpec, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.live_experiments.session import LiveSession
    from pilotlight.output import Output

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
    """Run the demo with its state in a subfolder; raises ExpectationFailed."""
    settings = PlatformSettings(
        state_dir=StateDir(state_dir.root / "demo-workflows"),
        objects=state_dir.objects,
        port=0,
        pods=2,
        pod=LocalPodSettings(memory_bytes=_MEMORY_BYTES, retire_grace_s=0.1),
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
        raise ExpectationFailed(f"not seen in this run: {'; '.join(failed)}")


async def _run(settings: PlatformSettings, output: Output) -> WorkflowReport:
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
            ModelName("default", "embed"), "s3://models/all-minilm-l6-v2",
            task=Task.TEXT_EMBEDDING,
        ),
        ModelSpec(ModelName("default", "domain"), "s3://models/domain-head", format="pytorch"),
        *(ModelSpec(ModelName("default", name), "s3://models/gpt2-small") for name in writers),
    ]  # fmt: skip


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
        "/v1/workflows/expert:run", json={"question": _QUESTIONS[0][1]},
        headers={"prefer": "respond-async"},
    )  # fmt: skip
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
