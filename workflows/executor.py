"""Carries out what the code of runs does: its messages, and how runs end."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from registry.domain.model import ModelName
from workflows.deliveries import Deliveries, SendToRunner
from workflows.journal import Journal
from workflows.kept_outputs import KeptOutputs
from workflows.metrics import SchedulerMetrics
from workflows.plan.planner import Planner
from workflows.run import Run, RunStatus, RunStep, StepState
from workflows.step_client import StepClient
from workflows.step_execution import StepExecution

OnEnd = Callable[[Run], None]


class Executor:
    """Belongs to the event loop."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        client: StepClient,
        planner: Planner,
        journal: Journal,
        metrics: SchedulerMetrics,
        kept: KeptOutputs,
        *,
        send: SendToRunner,
        on_end: OnEnd,
    ) -> None:
        self._deliveries = Deliveries(journal, send)
        self._steps = StepExecution(
            group, client, planner, journal, metrics, kept, self._deliveries
        )
        self._group = group
        self._planner = planner
        self._metrics = metrics
        self._kept = kept
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
                self._on_forgotten(run, message.get("forgotten"))
            case {"type": "fetch", "step": int(number)} if 0 <= number < len(run.steps):
                run.fetches.add(number)
                self._steps.need_data(run, run.steps[number])
                self._deliveries.deliver_ready(run)
            case {"type": "stream", "step": int(number)} if 0 <= number < len(run.steps):
                run.iterated[number] = 0
                self._steps.need_data(run, run.steps[number])
                self._deliveries.deliver_ready(run)
            case {"type": "printed", "text": str(text)}:
                run.printed.add(text)
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
                self.cancel(run)
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
        self._steps.begin(run, step)

    def _fail_nondeterministic(self, run: Run, step: RunStep) -> None:
        self.fail(
            run,
            f"the run was resumed, and its code called step {step.number} (model "
            f"{step.model.name}) otherwise than before; use now, random and uuid4 of "
            "pilotlight.workflow",
            "nondeterministic",
            422,
        )

    def _on_forgotten(self, run: Run, numbers: object) -> None:
        """The code has dropped its handles on these steps."""
        if isinstance(numbers, list):
            run.forgotten |= {each for each in numbers if each in range(len(run.steps))}
            self._steps.free_forgotten(run)

    # The end of a run

    def fail(self, run: Run, message: str, reason: str, status: int) -> None:
        self.end(run, RunStatus.FAILED, error=_error(message, reason, status))

    def end(
        self,
        run: Run,
        status: RunStatus,
        *,
        result: Any = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """Record how a run ended, and take back what it still does."""
        if run.status is not RunStatus.RUNNING:
            return
        run.status, run.result, run.error = status, result, error
        run.ended_s = self._planner.now_s()
        self.release(run, is_learned=status is RunStatus.SUCCEEDED)
        self._metrics.runs.labels(status.value).inc()
        self._metrics.seconds.labels(run.scheduling).observe(run.ended_s - run.begun_s)
        keepers = run.keepers | (self._planner.pod_addresses() if run.has_lost_attempts else set())
        if keepers:
            self._group.create_task(self._kept.drop(run, keepers))
        self._on_end(run)

    def release(self, run: Run, *, is_learned: bool = False) -> None:
        """Take back what a run still does here."""
        for step in run.steps:
            if step.task is not None:
                step.task.cancel()
            if step.fetching is not None:
                step.fetching.cancel()
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
