"""Executes the steps of runs: when a step is sent, and what follows from how it ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from workflows.service.forgotten_steps import forget_unneeded
from workflows.service.run import RunStatus, StepState
from workflows.service.step_attempts import MAX_ATTEMPTS
from workflows.service.step_errors import InputsLost, StepError
from workflows.service.tensors import outputs_bytes

if TYPE_CHECKING:
    from workflows.service.deliveries import Deliveries
    from workflows.service.journal import Journal
    from workflows.service.kept_outputs import KeptOutputs
    from workflows.service.metrics import SchedulerMetrics
    from workflows.service.planner import Planner
    from workflows.service.run import Run, RunStep
    from workflows.service.step_attempts import StepAttempts

logger = logging.getLogger(__name__)


class StepExecution:
    """Belongs to the event loop; step tasks belong to its task group."""

    def __init__(
        self, group: asyncio.TaskGroup, attempts: StepAttempts, planner: Planner, journal: Journal,
        metrics: SchedulerMetrics, kept: KeptOutputs, deliveries: Deliveries,
    ) -> None:  # fmt: skip
        self._group = group
        self._attempts = attempts
        self._planner = planner
        self._journal = journal
        self._metrics = metrics
        self._kept = kept
        self._deliveries = deliveries

    def begin(self, run: Run, step: RunStep) -> None:
        """A step that was called now, without a recorded result."""
        if self._planner.spec(step.model) is None:
            name, namespace = step.model.name, step.model.namespace
            self._step_failed(run, step, StepError(
                f"model {name} is not declared in namespace {namespace}; "
                "`pilotlight get models` lists those that are", "model-not-found", 404,
            ))  # fmt: skip
            return
        self._planner.call(run, step)
        self._advance(run, step)

    def need_data(self, run: Run, step: RunStep) -> None:
        """Get the data of outputs, which a pod may keep, for the run's code."""
        self._need_outputs(run, step)
        if step.state is not StepState.DONE or step.fetching is not None:
            return
        step.is_too_large = outputs_bytes(step.outputs or {}) > self._kept.max_bytes
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
            self._step_failed(run, step, StepError(
                f"its input, step {failed.number}, failed: {failed.error['message']}",
                str(failed.error["reason"]), int(failed.error["status"]),
            ))  # fmt: skip
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
            await self._attempts.execute(run, step)
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
