"""Sends a step until a pod answers: where to, how often, and what is lost with its pods."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from workflows.service.run import RunStatus
from workflows.service.step_client import StepCall, resolved_inputs
from workflows.service.step_errors import InputsLost, StepError, StepLost
from workflows.service.streamed_text import StreamedText
from workflows.wire.values import STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workflows.service.lost_outputs import LostOutputs
    from workflows.service.planner import Planner
    from workflows.service.run import Run, RunStep
    from workflows.service.step_client import StepClient, StepResponse
    from workflows.service.tensors import KeptAt, StoredTensor

MAX_ATTEMPTS: Final = 8
"""Of a step whose pods were lost with it. Until the run's deadline it waits for a gateway."""
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 2.0


class StepAttempts:
    """Belongs to the event loop."""

    def __init__(
        self, client: StepClient, planner: Planner, lost: LostOutputs,
        on_text: Callable[[Run], None],
    ) -> None:  # fmt: skip
        """`on_text` is called when a streamed step has more text."""
        self._client = client
        self._planner = planner
        self._lost = lost
        self._on_text = on_text

    async def execute(self, run: Run, step: RunStep) -> None:
        """Set the step's outputs. Raises StepError, InputsLost with the tensors that are lost."""
        try:
            await self._send(run, step)
        except InputsLost as error:
            lost = await self._lost.find(run, _places(run, step, error.identities))
            raise InputsLost(str(error), lost) from error

    async def _send(self, run: Run, step: RunStep) -> None:
        outputs = {number: run.steps[number].outputs or {} for number in step.sources}
        tensors = resolved_inputs(step.inputs, outputs)
        text = step.text = StreamedText() if step.protocol == STREAM else None

        def on_text(piece: str) -> None:
            if text is not None and run.status is RunStatus.RUNNING:
                text.append(piece)
                self._on_text(run)

        losses = 0
        while True:
            if text is not None:
                text.begin()
            call = self._next_call(run, step, tensors)
            try:
                response = await self._client.infer(call, on_text)
            except StepLost as error:
                losses += error.was_sent
                if losses >= MAX_ATTEMPTS:
                    raise StepError(str(error), "step-lost", 503) from error
                pause_s = min(_FIRST_PAUSE_S * 2 ** min(step.attempts - 1, 8), _MAX_PAUSE_S)
                await asyncio.sleep(max(pause_s, error.pause_s))
                continue
            if text is not None and text.differs:
                raise StepError(
                    "the pod was lost while the text was generated, and another generated "
                    "another text", "step-lost", 503,
                )  # fmt: skip
            _record(run, step, response, response.pod or call.pod)
            return

    def _next_call(self, run: Run, step: RunStep, tensors: Sequence[StoredTensor]) -> StepCall:
        """Place the step; the call of its next attempt."""
        now_s = self._planner.now_s()
        pod = self._planner.place(run, step)
        step.attempts += 1
        step.sent_s = now_s
        following_s = self._planner.following_s(run, step)
        step.due_s = run.deadline_s - following_s
        return StepCall(
            step.model, tensors, f"{run.identity}.{step.number}", pod,
            run.deadline_s - now_s, run.identity, step.protocol,
            following_s,
        )  # fmt: skip


def _record(run: Run, step: RunStep, response: StepResponse, pod: str) -> None:
    step.outputs = response.outputs
    places = [each.kept for each in response.outputs.values()]
    run.keepers |= {each.address for each in places if each is not None}
    step.pod, step.start = pod, response.start
    step.stages_ms, step.batch = dict(response.stages_ms), response.batch


def _places(run: Run, step: RunStep, identities: frozenset[str]) -> list[KeptAt]:
    """Where the tensors are kept that a step takes, of those with these identities."""
    outputs = [run.steps[number].outputs or {} for number in step.sources]
    places = [tensor.kept for each in outputs for tensor in each.values()]
    return [each for each in places if each is not None and each.identity in identities]
