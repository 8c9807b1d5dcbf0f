"""What a file defines, and one run of it: begins steps, waits for outputs, reports how it ends.

A run is resumed by executing its function again with the outputs it has seen. So outputs are
delivered one at a time, each when the code has nothing else to do, in the order of the first time.
"""

import asyncio
import contextlib
import inspect
import random
import socket
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import orjson

from common.frames import BadFrame, frame
from common.sizes import parse_duration_s
from workflows.runner import STREAM, Printed

MAX_MESSAGE_CHARACTERS: Final = 1000


class StepFailed(Exception):
    """A model's call failed; a workflow may catch it and go on.

    `reason` is one of a closed set, `status` the HTTP status that the run ends with if nobody
    catches it.
    """

    def __init__(self, message: str, reason: str = "step-failed", status: int = 502) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


class NoRunError(RuntimeError):
    """A model was called outside of a run."""


class RunStuck(BaseException):
    """Raised inside a run that kept its runner busy for too long."""


MAX_TEXT_LENGTH: Final = 32 * 1024**2
"""orjson takes eight times a text's length in memory, and ends the process where it gets less."""


_TYPES: Final = {str: "text", int: "whole number", float: "number", bool: "boolean",
                 list: "list", dict: "object"}  # fmt: skip


class BadDefinitionError(Exception):
    """A file that defines no workflow that can be run; says why."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """An asynchronous function, or an asynchronous generator, that calls models."""

    function: Callable[..., Any]
    deadline_s: float | None = None
    """From the arrival of a request; None: the scheduler's limit."""

    @property
    def is_stream(self) -> bool:
        return inspect.isasyncgenfunction(self.function)

    def parameters(self) -> list[dict[str, Any]]:
        """Name, type and whether it is required, of each parameter.

        Raises BadDefinitionError for parameters that JSON arguments cannot fill.
        """
        found = []
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise BadDefinitionError(
                    f"parameter {parameter.name!r} of {self.function.__name__} must be a plain one"
                )
            found.append(
                {
                    "name": parameter.name,
                    "type": _type_name(parameter.annotation),
                    "required": parameter.default is parameter.empty,
                }
            )
        return found


def _type_name(annotation: object) -> str:
    """One of the words that arguments are checked by; `any` for all other annotations."""
    if isinstance(annotation, str):  # `from __future__ import annotations`
        by_text = {kind.__name__: word for kind, word in _TYPES.items()}
        return by_text.get(annotation.partition("[")[0], "any")
    origin = getattr(annotation, "__origin__", annotation)
    return next((word for kind, word in _TYPES.items() if origin is kind), "any")


def parse_deadline(text: object) -> float:
    """Seconds of a duration such as `10s`. Raises BadDefinitionError."""
    with contextlib.suppress(ValueError):
        if isinstance(text, str) and (seconds := parse_duration_s(text)) > 0:
            return seconds
    raise BadDefinitionError(f"deadline must be a duration such as '10s', was {text!r}")


def define(function: Callable[..., Any], deadline: str | None) -> Workflow:
    """A workflow of a function. Raises BadDefinitionError for one that is not asynchronous."""
    if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        raise BadDefinitionError(
            f"{getattr(function, '__name__', function)!r} must be defined with `async def`"
        )
    return Workflow(function, None if deadline is None else parse_deadline(deadline))


class ExecutingRun:
    """A run's function, executed by a task. Owned by the event loop."""

    def __init__(
        self,
        execution: str,
        seed: str,
        begun_s: float,
        write: Callable[[bytes], None],
        *,
        max_steps: int,
    ) -> None:
        """`execution`: its name in messages; `seed`: the same when the run is resumed.

        `write` takes frames.
        """
        self.execution = execution
        self.begun_s = begun_s
        self.random = random.Random(seed)
        self.busy_s = 0.0
        """Time for which it kept the loop busy since the loop was idle."""
        self.interruptions = 0
        """How often it was interrupted for that."""
        self._write = write
        self._max_steps = max_steps
        self._steps = 0
        self._fetches: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._held: dict[int, tuple[dict[str, Any], bytes]] = {}
        """Calls of this turn of the loop, with their frames: their text may be iterated yet."""
        self._streams: dict[int, asyncio.Queue[str | StepFailed | None]] = {}
        self._iterated: set[int] = set()
        self._printed = Printed()
        self._unsent = ""
        """Printed since the last frame."""
        self.task: asyncio.Task[None] | None = None
        self._is_deadlocked = False
        self.is_left = False
        """It is over, but its tasks wait for each other for ever."""

    # What its code calls

    def begin_step(self, model: str, inputs: Mapping[str, Any], protocol: str = "") -> int:
        """Begin a step; its number in the order of the calls.

        With a `protocol` (v1, v2 or body) its one input is a request's body as it is, its outputs
        are `status` and `body`.
        """
        if self._steps >= self._max_steps:
            raise StepFailed(
                f"a run may begin {self._max_steps} steps, this is one more", "step-limit", 422
            )
        number = self._steps
        message = {
            "run": self.execution,
            "type": "step",
            "step": number,
            "model": model,
            "inputs": inputs,
            **({"protocol": protocol} if protocol else {}),
        }
        try:
            framed = frame(message)
        except BadFrame as error:
            text = f"the call of model {model} {error}"
            raise StepFailed(text, "input-too-large", 413) from error
        if not self._held:
            asyncio.get_running_loop().call_soon(self._send_held)
        self._held[number] = (message, framed)
        self._steps += 1
        return number

    def _send_held(self) -> None:
        for _, framed in self._held.values():
            self._write(framed)
        self._held.clear()

    def fetch(self, step: int) -> asyncio.Future[dict[str, Any]]:
        if step not in self._fetches:
            self._fetches[step] = asyncio.get_running_loop().create_future()
            self.send(type="fetch", step=step)
        return self._fetches[step]

    def stream(self, step: int) -> AsyncIterator[str]:
        if step in self._iterated:
            raise StepFailed("the text of a step can be iterated once", "step-failed", 422)
        self._iterated.add(step)
        if step in self._held:
            message = {**self._held[step][0], "protocol": STREAM}
            self._held[step] = (message, frame(message))
        self.send(type="stream", step=step)
        self._streams[step] = asyncio.Queue()
        return self._pieces(step, self._streams[step])

    async def _pieces(
        self, step: int, queue: asyncio.Queue[str | StepFailed | None]
    ) -> AsyncIterator[str]:
        try:
            while (piece := await queue.get()) is not None:
                if isinstance(piece, StepFailed):
                    raise piece
                yield piece
        finally:
            self._streams.pop(step, None)

    # Execution

    def send(self, **message: Any) -> None:
        """Send a message after the calls before it. Raises BadFrame."""
        framed = frame({"run": self.execution, **message})
        self._send_held()
        self._send_printed()
        self._write(framed)

    def print(self, text: str) -> None:
        """Send what the code prints, at the end of this turn of the loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_printed)
        self._unsent += self._printed.add(text)

    def _send_printed(self) -> None:
        text, self._unsent = self._unsent, ""
        if text:
            self._write(frame({"run": self.execution, "type": "printed", "text": text}))

    def start(self, workflow: Workflow, arguments: Mapping[str, Any]) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self._execute(workflow, arguments))
        return self.task

    async def _execute(self, workflow: Workflow, arguments: Mapping[str, Any]) -> None:
        current_run.set(self)
        try:
            if workflow.is_stream:
                async for item in workflow.function(**arguments):
                    self.send(type="item", value=await _plain(item))
                result = None
            else:
                result = await _plain(await workflow.function(**arguments))
            self.send(type="done", result=result)
        except asyncio.CancelledError:
            self._report_cancelled()
        except RunStuck as error:
            self._fail(str(error), "stuck", 422, **_where(error))
        except StepFailed as error:
            self._fail(str(error), error.reason, error.status, **_where(error))
        except BadFrame as error:
            self._fail(f"the result {error}", "result-too-large", 413)
        except BaseException as error:  # whatever a user's code raises ends its run only
            text = f"{type(error).__name__}: {error}{_hint(error)}"
            self._fail(
                text, "workflow-failed", 422, exception=type(error).__name__, **_where(error)
            )

    def _fail(self, message: str, reason: str, status: int, **details: Any) -> None:
        text = message[:MAX_MESSAGE_CHARACTERS]
        self.send(
            type="failed", error={"message": text, "reason": reason, "status": status, **details}
        )

    def _report_cancelled(self) -> None:
        if self._is_deadlocked:
            self._fail("the run waits although none of its steps is under way", "deadlock", 422)
        else:
            self.send(type="cancelled")

    def cancel(self) -> None:
        if self.task is None or self.is_left:
            return
        try:
            self.task.cancel()
        except RecursionError:  # tasks that wait for each other: their circle is followed for ever
            self.is_left = True
            self._report_cancelled()

    @property
    def has_begun(self) -> bool:
        return self.task is not None and not self.task.done() and not self.is_left

    @property
    def waits_for_steps(self) -> bool:
        return bool(self._streams) or any(not each.done() for each in self._fetches.values())

    def end_deadlock(self) -> None:
        """End a run that can never go on."""
        self._is_deadlocked = True
        self.cancel()

    # Replies

    def deliver(self, step: int, outputs: Mapping[str, Any]) -> None:
        future = self._fetches.get(step)
        if future is not None and not future.done():
            future.set_result(_Outputs(outputs))

    def deliver_failure(self, step: int, error: Mapping[str, Any]) -> None:
        failure = StepFailed(str(error["message"]), str(error["reason"]), int(error["status"]))
        future = self._fetches.get(step)
        if future is not None and not future.done():
            future.set_exception(failure)
            future.exception()  # the run may never await it
        if step in self._streams:
            self._streams[step].put_nowait(failure)

    def deliver_text(self, step: int, text: str | None) -> None:
        """A piece of a step's text; None: it is complete."""
        if step in self._streams:
            self._streams[step].put_nowait(text)


current_run: Final[ContextVar[ExecutingRun | None]] = ContextVar("run", default=None)
"""The run of the running task."""


def running() -> ExecutingRun:
    """The run of the running task. Raises NoRunError outside of a run."""
    run = current_run.get()
    if run is None:
        raise NoRunError("models are called inside of a workflow's function only")
    return run


class _Outputs(dict[str, Any]):
    """A step's outputs; an unknown name fails with those that there are."""

    def __missing__(self, name: str) -> Any:
        raise StepFailed(
            f"there is no output {name!r}; the model has: {', '.join(sorted(self))}",
            "unknown-output",
            422,
        )


async def _plain(value: Any) -> Any:
    """A run's result as JSON, steps in it fetched. Raises TypeError for what is none."""
    match value:
        case list() | tuple():
            return [await _plain(each) for each in value]
        case dict():
            return {key: await _plain(each) for key, each in value.items()}
        case str() if len(value) > MAX_TEXT_LENGTH:
            raise BadFrame(f"has a text of length {len(value)}, {MAX_TEXT_LENGTH} are allowed")
    if inspect.isawaitable(value):
        return await _plain(await value)
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise TypeError(f"the result must be JSON: {error}") from None
    return value


def _hint(error: BaseException) -> str:
    """Why the system refused something, where that is the reason of the error."""
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        if isinstance(found, PermissionError | socket.gaierror):
            return "; workflows have no network, files or processes: what they call are models"
        seen.append(found)
        reason = getattr(found, "reason", None)  # of URLError
        found = (
            reason if isinstance(reason, BaseException) else found.__cause__ or found.__context__
        )
    return ""


def line_of(error: BaseException) -> int | None:
    """Line of the workflow's file where an error came from."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if frame.f_code.co_filename == FILENAME]
    return lines[-1] if lines else None


def _where(error: BaseException) -> dict[str, Any]:
    line = line_of(error)
    return {} if line is None else {"line": line}


FILENAME: Final = "<workflow>"
"""Name of a workflow's file in tracebacks."""
