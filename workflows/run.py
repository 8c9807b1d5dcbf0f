"""One run as its scheduler knows it: its steps, who waits for them, and how it ended."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from registry.domain.model import ModelName
from workflows.preloads import Preload
from workflows.runner import Printed, source_of
from workflows.values import StoredTensor, StreamedText

ANY_WORKFLOW = "-"
"""In place of a workflow's name, where a run is named by its identity alone."""


def is_run_of(workflow: ModelName, name: ModelName) -> bool:
    """Whether a run of `workflow` is meant by `name`."""
    any_name = name.name == ANY_WORKFLOW
    return workflow == name or (any_name and workflow.namespace == name.namespace)


class StepState(StrEnum):
    WAITING = "waiting"
    """For its inputs."""
    RUNNING = "running"
    """Sent to a pod, or queued there or at the gateway."""
    DONE = "done"
    FAILED = "failed"


class RunStatus(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(eq=False, slots=True)
class RunStep:
    """One call of a model."""

    number: int
    model: ModelName
    inputs: Mapping[str, Any]
    """As written in the frame."""
    begun_s: float
    """This and all times: on the registry's clock."""
    protocol: str = ""
    """`v1`, `v2` or `body` of a graph's step, which sends a body as it is; `stream`: its text is
    iterated as it is generated; empty: V2 tensors."""
    state: StepState = StepState.WAITING
    pod: str = ""
    """Planned, later the pod that ran it."""
    predicted: bool = False
    """It was predicted, with these inputs, before it was called."""
    sent_s: float = 0.0
    due_s: float = 0.0
    """The run's deadline, less what is expected to follow; known once it is sent."""
    ended_s: float = 0.0
    stages_ms: dict[str, float] = field(default_factory=dict)
    start: str = ""
    """`warm`, or the tier that its model's load started from."""
    batch: str = ""
    """Names the inference that it was part of, within its pod, with the items in it."""
    outputs: Mapping[str, StoredTensor] | None = None
    """None also where they were lost: then the step runs again when somebody needs them."""
    text: StreamedText | None = None
    """As it is generated, of a step with protocol `stream`."""
    error: Mapping[str, Any] | None = None
    attempts: int = 0
    losses: int = 0
    """Times that tensors kept at a pod were lost: its inputs, or its outputs before a fetch."""
    task: asyncio.Task[None] | None = None
    is_too_large: bool = False
    """Its outputs are larger than what code may fetch, and stay where they are."""
    fetching: asyncio.Task[None] | None = None
    """Gets data of its outputs that a pod keeps."""

    @property
    def has_data_elsewhere(self) -> bool:
        return any(each.is_elsewhere for each in (self.outputs or {}).values())

    def forget_kept(self) -> None:
        """Forget where its outputs are kept; without other data it runs again if it is needed."""
        if self.has_data_elsewhere:
            self.outputs = None
        elif self.outputs is not None:  # fetched before
            outputs = {name: replace(each, kept=None) for name, each in self.outputs.items()}
            self.outputs = outputs

    @property
    def sources(self) -> list[int]:
        found = (source_of(each) for each in self.inputs.values())
        return sorted({each for each in found if each is not None})

    @property
    def digest(self) -> str:
        """Equal for equal calls."""
        call = [str(self.model), self.inputs, *([self.protocol] if self.protocol else [])]
        text = orjson.dumps(call, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(text).hexdigest()[:16]

    @property
    def is_over(self) -> bool:
        return self.state in (StepState.DONE, StepState.FAILED)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something that a run's code got of a step: its outputs, or a piece of its text."""

    step: int
    text_to: int | None = None
    """The text's characters up to here; None: outputs."""
    is_end: bool = False
    """Of the text: there is no more of it."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step's result in the journal."""

    digest: str
    outputs: Mapping[str, StoredTensor] | None
    """None: too large for the journal."""
    error: Mapping[str, Any] | None


@dataclass(eq=False, slots=True)
class Run:
    """One run; its owner's event loop changes it."""

    identity: str
    workflow: ModelName
    arguments: Mapping[str, Any]
    begun_s: float
    deadline_s: float
    """Time on the registry's clock."""
    scheduling: str
    features: frozenset[str] = frozenset()
    token: int = 0
    """Fencing token of its ownership."""
    journalled: int = 0
    """Entries that its journal must have."""
    has_gap: bool = False
    """Entries are missing in its journal, which is to be written anew."""
    status: RunStatus = RunStatus.RUNNING
    result: Any = None
    error: Mapping[str, Any] | None = None
    items: list[Any] = field(default_factory=list)
    """What an asynchronous generator has yielded."""
    steps: list[RunStep] = field(default_factory=list)
    fetches: set[int] = field(default_factory=set)
    """Steps whose outputs its code waits for."""
    iterated: dict[int, int] = field(default_factory=dict)
    """Steps whose text its code iterates, with the characters that it has got."""
    recorded: dict[int, RecordedStep] = field(default_factory=dict)
    delivered: list[Delivery] = field(default_factory=list)
    """What its code has got, in that order."""
    called: int = 0
    """Steps that its code has called in this execution of it."""
    yielded: int = 0
    """Items that its code has yielded in this execution of it."""
    printed: Printed = field(default_factory=Printed)
    """What its code has printed in this execution of it."""
    deliveries: deque[Delivery] = field(default_factory=deque)
    """While the run is resumed: what its code got the first time and has not got yet."""
    resumptions: int = 0
    kills: int = 0
    """Runners that ended with it."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    ended_s: float = 0.0
    execution: str = ""
    """Names this execution of its code among those of its deployment."""
    host: object = None
    """The deployment whose runner executes it."""
    timer: asyncio.TimerHandle | None = None
    """Of its deadline."""
    keepers: set[str] = field(default_factory=set)
    """Addresses of pods that keep outputs of its steps."""
    preloads: list[Preload] = field(default_factory=list)
    """Loads ahead that it began or joined."""
    plans: list[Mapping[str, Any]] = field(default_factory=list)
    """What was predicted and where it was placed, for explanations."""

    async def notify_changed(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    @property
    def models(self) -> Sequence[str]:
        """Names of the steps' models, in the order of the calls."""
        return [step.model.name for step in self.steps]

    def head(self) -> dict[str, Any]:
        """What another scheduler needs to resume it."""
        return {
            "namespace": self.workflow.namespace,
            "workflow": self.workflow.name,
            "arguments": self.arguments,
            "begun_s": self.begun_s,
            "deadline_s": self.deadline_s,
            "scheduling": self.scheduling,
        }

    def outcome(self) -> dict[str, Any]:
        """Its document: status, result or error, and its steps."""
        document: dict[str, Any] = {
            "id": self.identity,
            "workflow": self.workflow.name,
            "namespace": self.workflow.namespace,
            "status": self.status.value,
            "begun_s": self.begun_s,
        }
        if self.status is RunStatus.SUCCEEDED:
            document["result"] = self.items or self.result
        if self.error is not None:
            document["error"] = self.error
        if self.ended_s:
            document["seconds"] = round(self.ended_s - self.begun_s, 6)
        if self.printed.text:
            document["printed"] = self.printed.text
        document["resumptions"] = self.resumptions
        document["scheduling"] = self.scheduling
        document["steps"] = [step_document(step, self.begun_s) for step in self.steps]
        document["plans"] = self.plans
        document["preloads"] = [each.as_json(self.begun_s) for each in self.preloads]
        return document


def step_document(step: RunStep, begun_s: float) -> dict[str, Any]:
    """A step with times in seconds since the run began."""
    document: dict[str, Any] = {
        "step": step.number,
        "model": step.model.name,
        "state": step.state.value,
        "pod": step.pod,
        "predicted": step.predicted,
        "inputs": step.sources,
        "called_s": round(step.begun_s - begun_s, 6),
    }
    if step.sent_s:
        document["sent_s"] = round(step.sent_s - begun_s, 6)
        document["due_s"] = round(step.due_s - begun_s, 6)
    if step.ended_s:
        document["ended_s"] = round(step.ended_s - begun_s, 6)
    if step.start:
        document |= {"start": step.start, "stages_ms": step.stages_ms, "batch": step.batch}
    if step.error is not None:
        document["error"] = step.error
    if step.attempts > 1:
        document["attempts"] = step.attempts
    if step.losses:
        document["lost_tensors"] = step.losses
    return document
