"""Executes the steps of runs: what a runner asks for, what pods answer, and how runs end."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from registry.domain.model import ModelName
from workflows.service.deliveries import Deliveries
from workflows.service.run import RunStatus, RunStep, StepState
from workflows.service.step_client import StepCall, resolved_inputs
from workflows.service.step_errors import StepError, StepLost
from workflows.service.streamed_text import StreamedText
from workflows.wire.values import STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workflows.service.deliveries import SendToRunner
    from workflows.service.journal import Journal
    from workflows.service.metrics import SchedulerMetrics
    from workflows.service.planner import Planner
    from workflows.service.run import Run
    from workflows.service.settings import SchedulerSettings
    from workflows.service.step_client import StepClient

    OnEnd = Callable[[Run], None]

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 8
"""Of a step whose pods were lost with it. Until the run's deadline it waits for a gateway."""
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 2.0


class Executor:
    """Belongs to the event loop; step tasks belong to its task group."""

    def __init__(
        self, settings: SchedulerSettings, group: asyncio.TaskGroup, client: StepClient,
        planner: Planner, journal: Journal, metrics: SchedulerMetrics, *,
        send: SendToRunner, on_end: OnEnd,
    ) -> None:  # fmt: skip
        self._deliveries = Deliveries(journal, send, max_fetch_bytes=settings.max_fetch_bytes)
        self._group = group
        self._client = client
        self._planner = planner
        self._journal = journal
        self._metrics = metrics
        self._send = send
        self._on_end = on_end

    # From the runner

    def on_message(self, run: Run, message: Mapping[str, Any]) -> None:
        """What a run's code did; messages of ended runs are ignored."""
        if run.status is not RunStatus.RUNNING:
            return
        match message:
            case {"type": "step", "step": int(number), "model": str(model), "inputs": dict(inputs)}:
                name, protocol = ModelName(run.workflow.namespace, model), message.get("protocol")
                self._on_step(run, number, name, inputs, str(protocol or ""))
            case {"type": "fetch", "step": int(number)} if 0 <= number < len(run.steps):
                run.fetches.add(number)
                self._need_outputs(run, run.steps[number])
                self._deliveries.deliver_ready(run)
            case {"type": "stream", "step": int(number)} if 0 <= number < len(run.steps):
                run.iterated[number] = 0
                self._need_outputs(run, run.steps[number])
                self._deliveries.deliver_ready(run)
            case {"type": "item"}:
                run.yielded += 1
                if run.yielded > len(run.items):
                    run.items.append(message.get("value"))
                    self._notify(run)
            case {"type": "done"}:
                self.end(run, RunStatus.SUCCEEDED, result=message.get("result"))
            case {"type": "failed", "error": dict(error)}:
                self.end(run, RunStatus.FAILED, error=error)
            case {"type": "cancelled"}:
                self.end(run, RunStatus.CANCELLED, error=_error("the run was cancelled",
                                                                "cancelled", 499))  # fmt: skip
            case _:
                self.fail(run, f"the runner sent {message!r:.100}", "runner-failed", 500)

    def _on_step(
        self, run: Run, number: int, model: ModelName, inputs: Mapping[str, Any], protocol: str
    ) -> None:
        """A call: new, or one that a resumed run has made before."""
        step = RunStep(number, model, inputs, self._planner.now_s(), protocol)
        if number != run.called or any(not 0 <= each < number for each in step.sources):
            self.fail(run, f"the runner sent step {number} out of turn", "runner-failed", 500)
            return
        run.called += 1
        if number < len(run.steps):
            if run.steps[number].digest != step.digest:
                self._fail_nondeterministic(run, step)
            return
        run.steps.append(step)
        recorded = run.recorded.get(number)
        if recorded is not None:
            if recorded.digest != step.digest:
                self._fail_nondeterministic(run, step)
                return
            step.outputs, step.error = recorded.outputs, recorded.error
            step.state = StepState.DONE if recorded.error is None else StepState.FAILED
            return
        if self._planner.spec(model) is None:
            self._step_failed(run, step, StepError(
                f"model {model.name} is not declared in namespace {model.namespace}; "
                "`pilotlight get models` lists those that are", "model-not-found", 404,
            ))  # fmt: skip
            return
        self._planner.call(run, step)
        self._advance(run, step)

    def _fail_nondeterministic(self, run: Run, step: RunStep) -> None:
        self.fail(
            run,
            f"the run was resumed, and its code called step {step.number} (model "
            f"{step.model.name}) otherwise than before; use now, random and uuid4 of "
            "pilotlight.workflow", "nondeterministic", 422,
        )  # fmt: skip

    # Steps

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

    async def _run_step(self, run: Run, step: RunStep) -> None:
        try:
            await self._attempt(run, step)
        except StepError as error:
            step.task = None
            self._step_failed(run, step, error)
        except asyncio.CancelledError:
            step.task = None
            raise
        except Exception as error:
            logger.exception("a step failed unexpectedly", extra={"run": run.identity})
            step.task = None
            self._step_failed(run, step, StepError(repr(error), "internal", 500))
        else:
            step.task = None
            self._step_done(run, step)

    async def _attempt(self, run: Run, step: RunStep) -> None:
        """Send the step until a pod answers. Raises StepError."""
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
            now_s = self._planner.now_s()
            pod = self._planner.place(run, step)
            step.attempts += 1
            step.sent_s = now_s
            try:
                call = StepCall(
                    step.model, tensors, f"{run.identity}.{step.number}", pod,
                    run.deadline_s - now_s, step.protocol,
                )  # fmt: skip
                response = await self._client.infer(call, on_text)
            except StepLost as error:
                losses += error.was_sent
                if losses >= MAX_ATTEMPTS:
                    raise StepError(str(error), "step-lost", 503) from error
                pause_s = min(_FIRST_PAUSE_S * 2 ** min(step.attempts - 1, 8), _MAX_PAUSE_S)
                await asyncio.sleep(pause_s)
                continue
            if text is not None and text.differs:
                raise StepError(
                    "the pod was lost while the text was generated, and another generated "
                    "another text", "step-lost", 503,
                )  # fmt: skip
            step.outputs = response.outputs
            step.pod, step.start = response.pod or pod, response.start
            step.stages_ms, step.batch = dict(response.stages_ms), response.batch
            return

    def _step_done(self, run: Run, step: RunStep) -> None:
        is_first = step.number not in run.recorded and not step.ended_s
        step.state = StepState.DONE
        step.ended_s = self._planner.now_s()
        self._planner.ended(run, step)
        self._metrics.steps.labels("ok", str(step.predicted).lower()).inc()
        self._step_over(run, step, is_first=is_first)

    def _step_failed(self, run: Run, step: RunStep, error: StepError) -> None:
        is_first = step.number not in run.recorded and not step.ended_s
        step.state, step.error = StepState.FAILED, error.as_json()
        step.ended_s = self._planner.now_s()
        self._planner.ended(run, step)
        self._metrics.steps.labels("failed", str(step.predicted).lower()).inc()
        self._step_over(run, step, is_first=is_first)

    def _step_over(self, run: Run, step: RunStep, *, is_first: bool) -> None:
        if run.status is not RunStatus.RUNNING:
            return
        if is_first:
            self._journal.step_ended(run, step)
        for other in run.steps[step.number + 1 :]:
            if step.number in other.sources:
                self._advance(run, other)
        self._deliveries.deliver_ready(run)

    # The end of a run

    def fail(self, run: Run, message: str, reason: str, status: int) -> None:
        self.end(run, RunStatus.FAILED, error=_error(message, reason, status))

    def end(
        self, run: Run, status: RunStatus, *, result: Any = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Record how a run ended, and take back what it still does."""
        if run.status is not RunStatus.RUNNING:
            return
        run.status, run.result, run.error = status, result, error
        run.ended_s = self._planner.now_s()
        self.release(run, is_learned=status is RunStatus.SUCCEEDED)
        self._metrics.runs.labels(status.value).inc()
        self._metrics.seconds.labels(run.scheduling.value).observe(run.ended_s - run.begun_s)
        self._on_end(run)

    def release(self, run: Run, *, is_learned: bool = False) -> None:
        """Take back what a run still does here."""
        for step in run.steps:
            if step.task is not None:
                step.task.cancel()
        self._send(run, {"run": run.identity, "type": "cancel"})
        self._planner.end(run, is_learned=is_learned)

    def cancel(self, run: Run) -> None:
        """A client wants no result any more."""
        self.end(run, RunStatus.CANCELLED, error=_error("the run was cancelled", "cancelled", 499))

    def pass_deadline(self, run: Run) -> None:
        seconds = run.deadline_s - run.begun_s
        message = f"the run did not end within its deadline of {seconds:g} s"
        self.end(run, RunStatus.FAILED, error=_error(message, "deadline", 504))

    def _notify(self, run: Run) -> None:
        async def notify() -> None:
            async with run.changed:
                run.changed.notify_all()

        self._group.create_task(notify())

    def deadline_timer(self, run: Run) -> asyncio.TimerHandle:
        """The timer that ends a run at its deadline."""
        left_s = max(0.0, run.deadline_s - self._planner.now_s())
        return asyncio.get_running_loop().call_later(left_s, partial(self.pass_deadline, run))


def _error(message: str, reason: str, status: int) -> dict[str, Any]:
    return {"message": message, "reason": reason, "status": status}
