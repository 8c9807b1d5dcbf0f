"""What a workflow's code works with: models that can be called, and handles on their outputs."""

import asyncio
import base64
import inspect
import re
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

from workflows.runner import Tensor


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


class RunPort(Protocol):
    """The run that is being executed, as calls need it."""

    def begin_step(self, model: str, inputs: Mapping[str, Any], protocol: str = "") -> int:
        """Begin a step; its number in the order of the calls.

        With a `protocol` (v1, v2 or body) its one input is a request's body as it is, its outputs
        are `status` and `body`.
        """
        ...

    def fetch(self, step: int) -> asyncio.Future[dict[str, Any]]:
        """The outputs of a step, by name."""
        ...

    def stream(self, step: int) -> AsyncIterator[str]:
        """The text of a generating step as it comes."""
        ...

    def forget(self, step: int) -> None:
        """The code has no handle on a step any more. Called wherever Python frees the handle."""
        ...


current_run: Final[ContextVar[RunPort | None]] = ContextVar("run", default=None)
"""The run of the running task."""


def running() -> RunPort:
    """The run of the running task. Raises NoRunError outside of a run."""
    run = current_run.get()
    if run is None:
        raise NoRunError("models are called inside of a workflow's function only")
    return run


class Unknown:
    """A value that is not there yet: whatever takes it for one is told to await it first."""

    __slots__ = ()

    def _take(self, *_: Any) -> Any:
        raise TypeError(f"{self._described()} known yet: await the step first, {self._awaited()}")

    def _described(self) -> str:
        raise NotImplementedError

    def _awaited(self) -> str:
        raise NotImplementedError

    __bool__ = __len__ = __iter__ = __contains__ = __int__ = __float__ = __index__ = _take
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = _take
    __rmul__ = __truediv__ = __rtruediv__ = __mod__ = __neg__ = __abs__ = __round__ = _take
    __format__ = _take


class Output(Unknown):
    """One named output of a step that may still run; awaiting it fetches its value."""

    __slots__ = ("name", "step")
    __hash__ = object.__hash__
    __eq__ = __getitem__ = Unknown._take

    def __init__(self, step: "Step", name: str) -> None:
        self.step = step
        self.name = name

    def __await__(self) -> Generator[Any, None, Any]:
        outputs = yield from self.step.__await__()
        return outputs[self.name]

    def _described(self) -> str:
        return f"output {self.name!r} of model {self.step.model} is not"

    def _awaited(self) -> str:
        return f"`(await step)[{self.name!r}]`"


class Step(Unknown):
    """A model's call that has begun. Pass it on, take one output of it, or await its outputs.

    Awaiting gives a dictionary of outputs by name, of which the first dimension is left out where
    it is 1. `async for piece in model(text)` gives the text as it is generated; of a step that was
    begun before, it gives the whole text as one piece.
    """

    __slots__ = ("_run", "_value", "model", "number")

    def __init__(self, run: RunPort, model: str, number: int) -> None:
        self._run = run
        self._value: asyncio.Future[dict[str, Any]] | None = None
        self.model = model
        self.number = number

    def __del__(self) -> None:
        self._run.forget(self.number)

    def __getitem__(self, name: str) -> Output:
        if not isinstance(name, str):
            raise TypeError(
                f"an output has a name, was {name!r}: await the step first, `(await step)[NAME]`"
            )
        return Output(self, name)

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        if self._value is None:
            self._value = self._run.fetch(self.number)
        return asyncio.shield(self._value).__await__()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._run.stream(self.number)

    def _described(self) -> str:
        return f"the outputs of model {self.model} are not"

    def _awaited(self) -> str:
        return "`await step`"


class Model:
    """A declared model, to be called in a workflow."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or "/" in name or "~" in name:
            raise ValueError(f"a model is named like `embed`, was {name!r}")
        self.name = name

    def __call__(self, *texts: Any, **inputs: Any) -> Step:
        """Begin a step. One positional argument is the text, or the bytes of an image.

        Keywords name the model's inputs. A value is one row: a first dimension of 1 is added.
        """
        run = running()
        if len(texts) > 1:
            raise TypeError(
                f"model {self.name} takes one positional argument, was called with {len(texts)}; "
                "name the inputs: model(name=value)"
            )
        arguments = {"": texts[0], **inputs} if texts else inputs
        if not arguments:
            raise TypeError(f"model {self.name} was called without an input")
        written = {name: written_argument(value) for name, value in arguments.items()}
        return Step(run, self.name, run.begin_step(self.name, written))


def written_argument(value: Any) -> dict[str, Any]:
    """An argument for a frame. Raises TypeError for what is none."""
    match value:
        case Step():
            return {"step": value.number, "output": None}
        case Output():
            return {"step": value.step.number, "output": value.name}
        case Tensor():
            return {"tensor": value.as_json()}
        case str() | bytes() | bytearray() if len(value) > MAX_TEXT_LENGTH:
            raise StepFailed(
                f"a text or bytes of length {len(value)}, {MAX_TEXT_LENGTH} are allowed",
                "input-too-large",
                413,
            )
        case bytes() | bytearray():
            return {"base64": base64.b64encode(value).decode()}
        case bool() | int() | float() | str() | list() | tuple():
            return {"value": value}
    raise TypeError(
        "an input is a text, bytes, a number, a list of numbers, a tensor or another step's "
        f"output, was {type(value).__name__}"
    )


# The workflows that a file defines, and their parameters.


_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TYPES: Final = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "boolean",
    list: "list",
    dict: "object",
}


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
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or float(match[1]) <= 0:
        raise BadDefinitionError(f"deadline must be a duration such as '10s', was {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def define(function: Callable[..., Any], deadline: str | None) -> Workflow:
    """A workflow of a function. Raises BadDefinitionError for one that is not asynchronous."""
    if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        raise BadDefinitionError(
            f"{getattr(function, '__name__', function)!r} must be defined with `async def`"
        )
    return Workflow(function, None if deadline is None else parse_deadline(deadline))
