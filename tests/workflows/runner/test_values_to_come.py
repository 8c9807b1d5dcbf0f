"""Code that takes a step, or an output of it, for a value is told to await it first."""

import socket
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest

from tests.workflows.runner.executing import messages_of
from workflows.runner.calls import Model


def failure_of(use: Callable[[], Any]) -> str:
    async def code() -> None:
        use()

    message = messages_of(code)[-1]
    assert message["type"] == "failed"
    return str(message["error"]["message"])


def output() -> Any:
    return Model("embed")("a")["embedding"]


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda: output()[0], id="index"),
        pytest.param(lambda: output()["x"], id="key"),
        pytest.param(lambda: list(output()), id="iteration"),
        pytest.param(lambda: len(output()), id="length"),
        pytest.param(lambda: output() == 0, id="equality"),
        pytest.param(lambda: output() != 0, id="inequality"),
        pytest.param(lambda: output() > 0.5, id="comparison"),
        pytest.param(lambda: output() + 1, id="sum"),
        pytest.param(lambda: 1 + output(), id="sum from the right"),
        pytest.param(lambda: f"{output()}", id="text"),
        pytest.param(lambda: 1 if output() else 0, id="condition"),
        pytest.param(lambda: float(output()), id="number"),
        pytest.param(lambda: 3 in output(), id="membership"),
    ],
)
def test_an_output_is_no_value_yet(use: Callable[[], Any]) -> None:
    message = failure_of(use)
    assert "output 'embedding' of model embed is not known yet" in message
    assert "await the step first, `(await step)['embedding']`" in message


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda: Model("embed")("a")[0], id="index"),  # type: ignore[index]
        pytest.param(lambda: list(Model("embed")("a")), id="iteration"),
        pytest.param(lambda: bool(Model("embed")("a")), id="condition"),
        pytest.param(lambda: len(Model("embed")("a")), id="length"),
    ],
)
def test_a_step_is_no_value_yet(use: Callable[[], Any]) -> None:
    assert "await the step first" in failure_of(use)


def test_outputs_can_still_be_told_apart_and_passed_on() -> None:
    async def code() -> None:
        held = {output(): 1}
        assert len(held) == 1
        Model("judge")(x=next(iter(held)))

    assert [each["type"] for each in messages_of(code)] == ["step", "step", "done"]


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(PermissionError(1, "Operation not permitted"), id="refused"),
        pytest.param(
            urllib.error.URLError(PermissionError(1, "Operation not permitted")), id="by urllib"
        ),
        pytest.param(socket.gaierror(-3, "Temporary failure in name resolution"), id="names"),
    ],
)
def test_what_the_system_refuses_is_explained(error: BaseException) -> None:
    assert "workflows have no network" in failure_of(lambda: _raise(error))


def test_an_error_behind_another_is_explained() -> None:
    def use() -> None:
        try:
            raise PermissionError(1, "Operation not permitted")
        except PermissionError as refused:
            raise RuntimeError("cannot connect") from refused

    assert "workflows have no network" in failure_of(use)
    assert "network" not in failure_of(lambda: _raise(RuntimeError("x")))
