"""The course of runs: what their code asks for, what it gets and in which order, how they end.

Decides when each step runs, which `Steps` executes, and journals what a resumed run needs. A
resumed run gets the same outputs and texts in the same order as the first time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from common.frames import BadFrame
from common.inference_protocol import InvalidRequest
from registry.domain.model import ModelName
from workflows.errors import InputsLost, WorkflowError
from workflows.journal import Journal
from workflows.metrics import SchedulerMetrics
from workflows.plan.planner import Planner
from workflows.run import Delivery, Run, RunStatus, RunStep, StepState
from workflows.steps import MAX_ATTEMPTS, MAX_FETCH_BYTES, Steps
from workflows.values import outputs_bytes, plain_value, text_of

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RunControl:
    """Belongs to the event loop; tasks of steps belong to its task group."""

    group: asyncio.TaskGroup
    steps: Steps
    planner: Planner
    journal: Journal
    metrics: SchedulerMetrics
    send: Callable[[Run, Mapping[str, Any]], None]
    """Sends a message to the runner that executes a run. Raises BadFrame."""
    on_end: Callable[[Run], None]

    # From the runner

    def on_message(self, run: Run, message: Mapping[str, Any]) -> None:
        """What a run's code did; messages of ended runs are ignored."""
        if run.status is not RunStatus.RUNNING:
            return
        if not _is_writable(message):
            self.fail(run, "the runner sent values nested too deeply", "runner-failed", 500)
            return
        match message:
            case {"type": "step", "step": int(number), "model": str(model), "inputs": dict(inputs)}:
                name, protocol = ModelName(run.workflow.namespace, model), message.get("protocol")
                self._on_call(run, number, name, inputs, str(protocol or ""))
            case {"type": "fetch", "step": int(number)} if 0 <= number < len(run.steps):
                run.fetches.add(number)
                self._need_data(run, run.steps[number])
                self._deliver_ready(run)
            case {"type": "stream", "step": int(number)} if 0 <= number < len(run.steps):
                run.iterated[number] = 0
                self._need_data(run, run.steps[number])
                self._deliver_ready(run)
            case {"type": "printed", "text": str(text)}:
                run.printed.add(text)
            case {"type": "item"}:
                run.yielded += 1
                if run.yielded > len(run.items):
                    run.items.append(message.get("value"))
                    self.group.create_task(run.notify_changed())
            case {"type": "done"}:
                self.end(run, RunStatus.SUCCEEDED, result=message.get("result"))
            case {"type": "failed", "error": dict(error)}:
                self.end(run, RunStatus.FAILED, error=error)
            case {"type": "cancelled"}:
                self.cancel(run)
            case _:
                self.fail(run, f"the runner sent {message!r:.100}", "runner-failed", 500)

    def _on_call(
        self, run: Run, number: int, model: ModelName, inputs: Mapping[str, Any], protocol: str
    ) -> None:
        """A call: new, or one that a resumed run has made before."""
        step = RunStep(number, model, inputs, self.planner.now_s(), protocol)
        if number != run.called or any(not 0 <= each < number for each in step.sources):
            self.fail(run, f"the runner sent step {number} out of turn", "runner-failed", 500)
            return
        run.called += 1
        is_known = number < len(run.steps)
        before = run.steps[number] if is_known else run.recorded.get(number)
        if before is not None and before.digest != step.digest:
            self.fail(
                run,
                f"the run was resumed, and its code called step {step.number} (model "
                f"{step.model.name}) otherwise than before; use now, random and uuid4 of "
                "pilotlight.workflow",
                "nondeterministic",
                422,
            )
            return
        if is_known:
            return
        run.steps.append(step)
        if before is not None:
            step.outputs, step.error = before.outputs, before.error
            step.state = StepState.DONE if before.error is None else StepState.FAILED
        elif self.planner.spec(model) is None:
            text = f"model {model.name} is not declared in namespace {model.namespace}; "
            text += "`pilotlight get models` lists those that are"
            self._step_failed(run, step, WorkflowError(text, "model-not-found", 404))
        else:
            self.planner.call(run, step)
            self._advance(run, step)

    # Steps

    def _advance(self, run: Run, step: RunStep) -> None:
        """Execute a step whose inputs are there; fail one whose inputs failed."""
        if step.state is not StepState.WAITING or step.task is not None:
            return
        sources = [run.steps[number] for number in step.sources]
        for source in sources:
            if source.state is StepState.FAILED and source.error is not None:
                text = f"its input, step {source.number}, failed: {source.error['message']}"
                error = WorkflowError(
                    text, str(source.error["reason"]), int(source.error["status"])
                )
                self._step_failed(run, step, error)
                return
        for source in sources:
            self._need_outputs(run, source)
        if all(source.outputs is not None for source in sources):
            step.state = StepState.RUNNING
            step.task = self.group.create_task(self._execute(run, step))

    def _need_outputs(self, run: Run, step: RunStep) -> None:
        """Run a step again whose result is known to exist, but is not at hand."""
        if step.state is StepState.DONE and step.outputs is None and step.task is None:
            step.state = StepState.WAITING
            self._advance(run, step)

    async def _execute(self, run: Run, step: RunStep) -> None:
        lost: InputsLost | None = None
        failure: WorkflowError | None = None
        try:
            await self.steps.execute(run, step, partial(self._deliver_ready, run))
        except WorkflowError as error:
            failure = error
        except InputsLost as error:
            lost = error
        except Exception as error:
            logger.exception("a step failed unexpectedly", extra={"run": run.identity})
            failure = WorkflowError(repr(error), "internal", 500)
        finally:
            step.task = None
        if failure is not None:
            self._step_failed(run, step, failure)
        elif lost is None:
            self._step_over(run, step, StepState.DONE)
        elif self._may_lose(run, step, lost):
            logger.warning("inputs lost", extra={"run": run.identity, "error": str(lost)})
            step.state = StepState.WAITING
            for number in step.sources:
                run.steps[number].forget_kept()
            self._advance(run, step)

    def _may_lose(self, run: Run, step: RunStep, error: InputsLost) -> bool:
        """Count a loss of kept tensors; False: it was one too many, and the step has failed."""
        step.losses += 1
        if step.losses < MAX_ATTEMPTS:
            return True
        self._step_failed(run, step, WorkflowError(str(error), "step-lost", 503))
        return False

    def _step_failed(self, run: Run, step: RunStep, error: WorkflowError) -> None:
        step.error = error.as_json()
        self._step_over(run, step, StepState.FAILED)

    def _step_over(self, run: Run, step: RunStep, state: StepState) -> None:
        is_first = step.number not in run.recorded and not step.ended_s
        step.state, step.ended_s = state, self.planner.now_s()
        self.planner.ended(run, step)
        outcome = "ok" if state is StepState.DONE else "failed"
        self.metrics.steps.labels(outcome, str(step.predicted).lower()).inc()
        if run.status is not RunStatus.RUNNING:
            return
        if is_first:
            self.journal.step_ended(run, step)
        for other in run.steps[step.number + 1 :]:
            if step.number in other.sources:
                self._advance(run, other)
        if step.number in run.fetches or step.number in run.iterated:
            self._need_data(run, step)
        self._deliver_ready(run)

    # Outputs

    def _need_data(self, run: Run, step: RunStep) -> None:
        """Get the data of outputs, which a pod may keep, for the run's code."""
        self._need_outputs(run, step)
        if step.state is not StepState.DONE or step.fetching is not None:
            return
        step.is_too_large = outputs_bytes(step.outputs or {}) > MAX_FETCH_BYTES
        if step.has_data_elsewhere and not step.is_too_large:
            step.fetching = self.group.create_task(self._fetch_data(run, step))

    async def _fetch_data(self, run: Run, step: RunStep) -> None:
        outputs = step.outputs
        try:
            fetched = await self.steps.fetch(run, step)
        except InputsLost as error:
            step.fetching = None
            if self._may_lose(run, step, error):
                step.forget_kept()
                self._need_data(run, step)
        else:
            step.fetching = None
            if step.outputs is outputs:
                step.outputs = fetched
            self._need_data(run, step)
            self._deliver_ready(run)

    def _deliver_ready(self, run: Run) -> None:
        """Deliver what the code waits for; of a resumed run first what it got the first time."""
        while run.deliveries:
            if not _is_ready(run, run.deliveries[0]):
                return
            self._deliver(run, run.deliveries.popleft())
        for number in sorted(run.fetches, key=lambda each: (run.steps[each].ended_s, each)):
            if _is_at_hand(run.steps[number]):
                self._deliver_new(run, Delivery(number))
        for number, got in list(run.iterated.items()):
            for delivery in _new_text(run.steps[number], got):
                self._deliver_new(run, delivery)

    def _deliver_new(self, run: Run, delivery: Delivery) -> None:
        self.journal.delivered(run, delivery)
        self._deliver(run, delivery)

    def _deliver(self, run: Run, delivery: Delivery) -> None:
        run.delivered.append(delivery)
        step = run.steps[delivery.step]
        messages = _outputs_messages if delivery.text_to is None else _text_messages
        for message in messages(run, step, delivery):
            self._send_reply(run, step, message)

    def _send_reply(self, run: Run, step: RunStep, message: Mapping[str, Any]) -> None:
        head = {"step": step.number}
        try:
            self.send(run, {**head, **message})
        except BadFrame as problem:
            error = WorkflowError(str(problem), "bad-output", 502).as_json()
            self.send(run, {**head, "type": "failure", "error": error})

    # The end of a run

    def fail(self, run: Run, message: str, reason: str, status: int) -> None:
        self.end(run, RunStatus.FAILED, error=WorkflowError(message, reason, status).as_json())

    def cancel(self, run: Run) -> None:
        """A client wants no result any more."""
        self.end(
            run,
            RunStatus.CANCELLED,
            error=WorkflowError("the run was cancelled", "cancelled", 499).as_json(),
        )

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
        run.ended_s = self.planner.now_s()
        keepers = run.keepers | self.planner.possible_keepers(run)
        self.release(run, is_learned=status is RunStatus.SUCCEEDED)
        self.metrics.runs.labels(status.value).inc()
        self.metrics.seconds.labels(run.scheduling).observe(run.ended_s - run.begun_s)
        if keepers:
            self.group.create_task(self.steps.drop(run, keepers))
        self.on_end(run)

    def release(self, run: Run, *, is_learned: bool = False) -> None:
        """Take back what a run still does here."""
        for step in run.steps:
            for task in (step.task, step.fetching):
                if task is not None:
                    task.cancel()
        self.send(run, {"type": "cancel"})
        self.planner.end(run, is_learned=is_learned)

    def deadline_timer(self, run: Run) -> asyncio.TimerHandle:
        seconds = run.deadline_s - run.begun_s
        message = f"the run did not end within its deadline of {seconds:g} s"
        left_s = max(0.0, run.deadline_s - self.planner.now_s())
        return asyncio.get_running_loop().call_later(
            left_s, partial(self.fail, run, message, "deadline", 504)
        )


def _is_writable(message: Mapping[str, Any]) -> bool:
    """Whether a document can hold what it holds: more levels are read than are written."""
    try:
        orjson.dumps([message])
    except TypeError:
        return False
    return True


def _is_at_hand(step: RunStep) -> bool:
    """Whether a step is over, with outputs whose data is here or an error."""
    if step.state is StepState.FAILED:
        return True
    if step.state is not StepState.DONE or step.outputs is None:
        return False
    return step.is_too_large or not step.has_data_elsewhere


def _is_ready(run: Run, delivery: Delivery) -> bool:
    """Whether the code waits for it and it is there."""
    if delivery.step >= len(run.steps):
        return False
    step = run.steps[delivery.step]
    if delivery.text_to is None:
        return step.number in run.fetches and _is_at_hand(step)
    if step.number not in run.iterated:
        return False
    has_come = step.text is not None and len(step.text.value) >= delivery.text_to
    return _is_at_hand(step) or (has_come and not delivery.is_end)


def _new_text(step: RunStep, got: int) -> Iterator[Delivery]:
    """What has come of an iterated text after its first characters."""
    if _is_at_hand(step):
        try:
            yield Delivery(step.number, len(_text(step)), is_end=True)
        except WorkflowError:
            yield Delivery(step.number, got, is_end=True)
    elif step.text is not None and len(step.text.value) > got and not step.text.differs:
        yield Delivery(step.number, len(step.text.value))


def _text(step: RunStep) -> str:
    """A step's text so far. Raises WorkflowError where its outputs hold none."""
    if step.text is not None:
        return step.text.value
    return text_of(step.model.name, step.outputs) if step.outputs is not None else ""


def _outputs_messages(run: Run, step: RunStep, _: Delivery) -> Iterator[dict[str, Any]]:
    run.fetches.discard(step.number)
    error, outputs = step.error, step.outputs or {}
    size = outputs_bytes(outputs)
    if error is None and size > MAX_FETCH_BYTES:
        text = f"the outputs of step {step.number} (model {step.model.name}) have {size} bytes, "
        text += f"code may fetch {MAX_FETCH_BYTES}; pass the step on unfetched"
        error = WorkflowError(text, "output-too-large", 413).as_json()
    if error is None:
        try:
            values = {name: plain_value(tensor) for name, tensor in outputs.items()}
        except InvalidRequest as problem:
            error = WorkflowError(str(problem), "bad-output", 502).as_json()
        else:
            yield {"type": "outputs", "outputs": values}
            return
    yield {"type": "failure", "error": error}


def _text_messages(run: Run, step: RunStep, delivery: Delivery) -> Iterator[dict[str, Any]]:
    got, error = run.iterated[step.number], step.error
    try:
        piece = _text(step)[got : delivery.text_to]
    except WorkflowError as problem:
        piece, error = "", problem.as_json()
    if piece:
        yield {"type": "text", "text": piece}
    run.iterated[step.number] = got + len(piece)
    if delivery.is_end:
        del run.iterated[step.number]
        yield {"type": "failure", "error": error} if error is not None else {"type": "text-end"}
