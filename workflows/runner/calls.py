"""What a workflow's code works with: models that can be called, and handles on their outputs."""

import asyncio
import base64
from collections.abc import AsyncIterator, Generator
from typing import Any

from workflows.runner import Tensor
from workflows.runner.execution import MAX_TEXT_LENGTH, ExecutingRun, StepFailed, running


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

    def __init__(self, run: ExecutingRun, model: str, number: int) -> None:
        self._run = run
        self._value: asyncio.Future[dict[str, Any]] | None = None
        self.model = model
        self.number = number

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
