"""What a workflow's file imports: `from pilotlight.workflow import model, workflow`.

A call of a model begins a step and returns a handle, which may be passed to other calls unfetched;
`await` fetches it. See `docs/workflows.md`.
"""

import random as random_module
import uuid
from collections.abc import Callable, Sequence
from typing import Any, overload

from workflows.runner import Tensor
from workflows.runner.calls import Model
from workflows.runner.execution import Workflow, define, running


def model(name: str) -> Model:
    """A declared model of the workflow's namespace; call it to begin a step."""
    return Model(name)


@overload
def workflow(function: Callable[..., Any], /) -> Workflow: ...
@overload
def workflow(*, deadline: str | None = None) -> Callable[[Callable[..., Any]], Workflow]: ...
def workflow(function: Callable[..., Any] | None = None, *, deadline: str | None = None) -> Any:
    """Make an asynchronous function, or generator, the workflow of its file.

    `deadline`: a duration such as `10s`, from the arrival of a request to its result.
    """
    if function is not None:
        return define(function, deadline)
    return lambda decorated: define(decorated, deadline)


def tensor(data: Sequence[Any], datatype: str, shape: Sequence[int]) -> Tensor:
    """An input with its type and whole shape; raises ValueError where they do not fit."""
    return Tensor(data, datatype, tuple(shape))


def now() -> float:
    """Unix time at which the run began, in seconds: the same when the run is resumed."""
    return running().begun_s


def random() -> random_module.Random:
    """Random numbers that are the same when the run is resumed."""
    return running().random


def uuid4() -> uuid.UUID:
    """A random UUID that is the same when the run is resumed."""
    return uuid.UUID(int=running().random.getrandbits(128), version=4)
