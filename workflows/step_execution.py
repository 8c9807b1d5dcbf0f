"""Executes the steps of runs: when and how often a step is sent, and what follows from its end."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from common.inference_protocol.tensors import TensorReference
from workflows.deliveries import Deliveries
from workflows.errors import InputsLost, StepError, StepLost
from workflows.journal import Journal
from workflows.kept_outputs import MAX_FETCH_BYTES, KeptOutputs
from workflows.metrics import SchedulerMetrics
from workflows.plan.planner import Planner
from workflows.run import Run, RunStatus, RunStep, StepState
from workflows.runner import STREAM
from workflows.step_client import StepCall, StepClient, StepResponse, resolved_inputs
from workflows.values import StoredTensor, StreamedText, outputs_bytes

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 8
"""Of a step whose pods were lost with it. Until the run's deadline it waits for a gateway."""
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 2.0


class StepExecution:
    """Belongs to the event loop; step tasks belong to its task group."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        client: StepClient,
        planner: Planner,
        journal: Journal,
        metrics: SchedulerMetrics,
        kept: KeptOutputs,
        deliveries: Deliveries,
    ) -> None:
        self._group = group
        self._client = client
        self._planner = planner
        self._journal = journal
        self._metrics = metrics
        self._kept = kept
        self._deliveries = deliveries

    def begin(self, run: Run, step: RunStep) -> None:
        """A step that was called now, without a recorded result."""
        if self._planner.spec(step.model) is None:
            name, namespace = step.model.name, step.model.namespace
            self._step_failed(
                run,
                step,
                StepError(
                    f"model {name} is not declared in namespace {namespace}; "
                    "`pilotlight get models` lists those that are",
                    "model-not-found",
                    404,
                ),
            )
            return
        self._planner.call(run, step)
        self._advance(run, step)

    def need_data(self, run: Run, step: RunStep) -> None:
        """Get the data of outputs, which a pod may keep, for the run's code."""
        self._need_outputs(run, step)
        if step.state is not StepState.DONE or step.fetching is not None:
            return
        step.is_too_large = outputs_bytes(step.outputs or {}) > MAX_FETCH_BYTES
        if step.has_data_elsewhere and not step.is_too_large:
            step.fetching = self._group.create_task(self._fetch_data(run, step))

    def free_forgotten(self, run: Run) -> None:
        """Free kept outputs that neither the code nor a step needs any more."""
        kept = forget_unneeded(run)
        if kept:
            self._group.create_task(self._kept.free(run, kept))

    # Inputs

    def _advance(self, run: Run, step: RunStep) -> None:
        """Send a step whose inputs are there; fail one whose inputs failed."""
        if step.state is not StepState.WAITING or step.task is not None:
            return
        sources = [run.steps[number] for number in step.sources]
        failed = next((each for each in sources if each.state is StepState.FAILED), None)
        if failed is not None and failed.error is not None:
            self._step_failed(
                run,
                step,
                StepError(
                    f"its input, step {failed.number}, failed: {failed.error['message']}",
                    str(failed.error["reason"]),
                    int(failed.error["status"]),
                ),
            )
            return
        for source in sources:
            self._need_outputs(run, source)
        if all(source.outputs is not None for source in sources):
            step.state = StepState.RUNNING
            step.task = self._group.create_task(self._run_step(run, step))

    def _need_outputs(self, run: Run, step: RunStep) -> None:
        """Run a step again whose result is known to exist, but is not at hand."""
        if step.state is StepState.DONE and step.outputs is None and step.task is None:
            step.state = StepState.WAITING
            self._advance(run, step)

    async def _fetch_data(self, run: Run, step: RunStep) -> None:
        outputs = step.outputs
        try:
            fetched = await self._kept.fetch(run, step)
        except InputsLost as error:
            step.fetching = None
            self._lose_outputs(run, step, error)
        else:
            step.fetching = None
            if step.outputs is outputs:
                step.outputs = fetched
            self.need_data(run, step)
            self._deliveries.deliver_ready(run)
            self.free_forgotten(run)

    # Losses

    def _lose_outputs(self, run: Run, step: RunStep, error: InputsLost) -> None:
        """Run a step again whose outputs are lost, where code waits for them."""
        if self._may_lose(run, step, error):
            _forget_lost(step, error)
            self.need_data(run, step)

    def _lose_inputs(self, run: Run, step: RunStep, error: InputsLost) -> None:
        """Run the steps again whose outputs this one took and are lost, and then this one."""
        if self._may_lose(run, step, error):
            logger.warning("inputs lost", extra={"run": run.identity, "error": str(error)})
            step.state = StepState.WAITING
            for number in step.sources:
                _forget_lost(run.steps[number], error)
            self._advance(run, step)

    def _may_lose(self, run: Run, step: RunStep, error: InputsLost) -> bool:
        """Count a loss; False: it was one too many, and the step has failed."""
        step.losses += 1
        if step.losses < MAX_ATTEMPTS:
            return True
        self._step_failed(run, step, StepError(str(error), "step-lost", 503))
        return False

    # Execution

    async def _run_step(self, run: Run, step: RunStep) -> None:
        try:
            await self._execute(run, step)
        except StepError as error:
            step.task = None
            self._step_failed(run, step, error)
        except InputsLost as error:
            step.task = None
            self._lose_inputs(run, step, error)
        except asyncio.CancelledError:
            step.task = None
            raise
        except Exception as error:
            logger.exception("a step failed unexpectedly", extra={"run": run.identity})
            step.task = None
            self._step_failed(run, step, StepError(repr(error), "internal", 500))
        else:
            step.task = None
            self._step_over(run, step, StepState.DONE)

    async def _execute(self, run: Run, step: RunStep) -> None:
        """Set the step's outputs. Raises StepError, InputsLost with the tensors that are lost."""
        try:
            await self._send(run, step)
        except InputsLost as error:
            lost = await self._kept.find_lost(run, _places(run, step, error.identities))
            raise InputsLost(str(error), lost) from error

    async def _send(self, run: Run, step: RunStep) -> None:
        """Send a step until a pod answers."""
        outputs = {number: run.steps[number].outputs or {} for number in step.sources}
        tensors = resolved_inputs(step.inputs, outputs)
        text = step.text = StreamedText() if step.protocol == STREAM else None

        def on_text(piece: str) -> None:
            if text is not None and run.status is RunStatus.RUNNING:
                text.append(piece)
                self._deliveries.deliver_ready(run)

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
                    "another text",
                    "step-lost",
                    503,
                )
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
            step.model,
            tensors,
            f"{run.identity}.{step.number}",
            pod,
            run.deadline_s - now_s,
            run.identity,
            step.protocol,
            following_s,
        )

    def _step_failed(self, run: Run, step: RunStep, error: StepError) -> None:
        step.error = error.as_json()
        self._step_over(run, step, StepState.FAILED)

    def _step_over(self, run: Run, step: RunStep, state: StepState) -> None:
        is_first = step.number not in run.recorded and not step.ended_s
        step.state = state
        step.ended_s = self._planner.now_s()
        self._planner.ended(run, step)
        outcome = "ok" if state is StepState.DONE else "failed"
        self._metrics.steps.labels(outcome, str(step.predicted).lower()).inc()
        if run.status is not RunStatus.RUNNING:
            return
        if is_first:
            self._journal.step_ended(run, step)
        for other in run.steps[step.number + 1 :]:
            if step.number in other.sources:
                self._advance(run, other)
        if step.number in run.fetches or step.number in run.iterated:
            self.need_data(run, step)
        self._deliveries.deliver_ready(run)
        self.free_forgotten(run)


def _forget_lost(step: RunStep, error: InputsLost) -> None:
    """Forget outputs of which some are lost, so that the step runs again."""
    if step.outputs is None or all(
        each.kept is None or each.kept.identity not in error.identities
        for each in step.outputs.values()
    ):
        return
    step.forget_kept()


def _record(run: Run, step: RunStep, response: StepResponse, pod: str) -> None:
    step.outputs = response.outputs
    places = [each.kept for each in response.outputs.values()]
    run.keepers |= {each.address for each in places if each is not None}
    step.pod, step.start = pod, response.start
    step.stages_ms, step.batch = dict(response.stages_ms), response.batch


def _places(run: Run, step: RunStep, identities: frozenset[str]) -> list[TensorReference]:
    """Where the tensors are kept that a step takes, of those with these identities."""
    outputs = [run.steps[number].outputs or {} for number in step.sources]
    places = [tensor.kept for each in outputs for tensor in each.values()]
    return [each for each in places if each is not None and each.identity in identities]


def forget_unneeded(run: Run) -> list[TensorReference]:
    """Forget the kept outputs of steps without a handle, and return what pods may free.

    Such a step runs again where it is needed after all: by a run that is resumed, or by a later
    step whose own outputs are lost.
    """
    if not run.forgotten:
        return []
    needed = {number for step in run.steps if not step.is_over for number in step.sources}
    unneeded = run.forgotten - needed - run.fetches - run.iterated.keys()
    freed: list[TensorReference] = []
    for number in sorted(unneeded):
        step = run.steps[number]
        if not step.is_over or step.fetching is not None:
            continue
        run.forgotten.discard(number)
        outputs = (step.outputs or {}).values()
        freed += [each.kept for each in outputs if each.kept is not None]
        step.forget_kept()
    return freed
