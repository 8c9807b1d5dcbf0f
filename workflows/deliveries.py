"""What the code of runs gets: outputs that it fetches, and text that it iterates.

A resumed run gets the same things in the same order as the first time.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from common.frames import BadFrame
from common.inference_protocol import InvalidRequest
from workflows.errors import StepError
from workflows.journal import Journal
from workflows.kept_outputs import MAX_FETCH_BYTES
from workflows.run import Delivery, Run, RunStep, StepState
from workflows.values import outputs_bytes, plain_value, text_of

SendToRunner = Callable[[Run, Mapping[str, Any]], None]


class Deliveries:
    """Belongs to the event loop."""

    def __init__(self, journal: Journal, send: SendToRunner) -> None:
        self._journal = journal
        self._send = send

    def deliver_ready(self, run: Run) -> None:
        """Deliver what the code waits for; of a resumed run first what it got the first time."""
        while run.deliveries:
            if not _is_ready(run, run.deliveries[0]):
                return
            self._deliver(run, run.deliveries.popleft(), is_new=False)
        for number in sorted(run.fetches, key=lambda each: (run.steps[each].ended_s, each)):
            if is_at_hand(run.steps[number]):
                self._deliver(run, Delivery(number), is_new=True)
        for number, got in list(run.iterated.items()):
            for delivery in _new_text(run.steps[number], got):
                self._deliver(run, delivery, is_new=True)

    def _deliver(self, run: Run, delivery: Delivery, *, is_new: bool) -> None:
        if is_new:
            self._journal.delivered(run, delivery)
        run.delivered.append(delivery)
        step = run.steps[delivery.step]
        if delivery.text_to is None:
            run.fetches.discard(step.number)
            self._send_outputs(run, step)
        else:
            self._send_text(run, step, delivery)

    def _send_outputs(self, run: Run, step: RunStep) -> None:
        message = {"run": run.identity, "step": step.number}
        error = step.error
        if error is None:
            try:
                values = self._plain_values(step)
                self._send(run, {**message, "type": "outputs", "outputs": values})
                return
            except (BadFrame, InvalidRequest) as problem:
                error = StepError(str(problem), "bad-output", 502).as_json()
            except StepError as problem:
                error = problem.as_json()
        self._send(run, {**message, "type": "failure", "error": error})

    def _send_text(self, run: Run, step: RunStep, delivery: Delivery) -> None:
        message = {"run": run.identity, "step": step.number}
        got, error = run.iterated[step.number], step.error
        try:
            piece = _text(step)[got : delivery.text_to]
        except StepError as problem:
            piece, error = "", problem.as_json()
        if piece:
            self._send(run, {**message, "type": "text", "text": piece})
        run.iterated[step.number] = got + len(piece)
        if not delivery.is_end:
            return
        del run.iterated[step.number]
        if error is None:
            self._send(run, {**message, "type": "text-end"})
        else:
            self._send(run, {**message, "type": "failure", "error": error})

    def _plain_values(self, step: RunStep) -> dict[str, Any]:
        """Raises StepError for outputs that are too large to fetch, InvalidRequest."""
        outputs = step.outputs or {}
        size = outputs_bytes(outputs)
        if size > MAX_FETCH_BYTES:
            raise StepError(
                f"the outputs of step {step.number} (model {step.model.name}) have {size} bytes, "
                f"code may fetch {MAX_FETCH_BYTES}; pass the step on unfetched",
                "output-too-large",
                413,
            )
        return {name: plain_value(tensor) for name, tensor in outputs.items()}


def is_at_hand(step: RunStep) -> bool:
    """Whether a step is over, with outputs whose data is here or an error."""
    if step.state is StepState.FAILED:
        return True
    if step.state is not StepState.DONE or step.outputs is None:
        return False
    return step.is_too_large or not step.has_data_elsewhere


def _is_ready(run: Run, delivery: Delivery) -> bool:
    """Whether the code waits for it and it is there."""
    step = run.steps[delivery.step] if delivery.step < len(run.steps) else None
    if step is None:
        return False
    if delivery.text_to is None:
        return step.number in run.fetches and is_at_hand(step)
    if step.number not in run.iterated:
        return False
    has_come = step.text is not None and len(step.text.value) >= delivery.text_to
    return is_at_hand(step) or (has_come and not delivery.is_end)


def _new_text(step: RunStep, got: int) -> Iterator[Delivery]:
    """What has come of an iterated text after its first characters."""
    if is_at_hand(step):
        try:
            yield Delivery(step.number, len(_text(step)), is_end=True)
        except StepError:
            yield Delivery(step.number, got, is_end=True)
    elif step.text is not None and len(step.text.value) > got and not step.text.differs:
        yield Delivery(step.number, len(step.text.value))


def _text(step: RunStep) -> str:
    """A step's text so far. Raises StepError where its outputs hold none."""
    if step.text is not None:
        return step.text.value
    return text_of(step.model.name, step.outputs) if step.outputs is not None else ""
