"""A runner says which steps its code has no handle on any more, after the calls that took them."""

import asyncio
from typing import Any

from tests.workflows.runner.executing import messages_of
from workflows.runner.calls import Model
from workflows.runner.execution import ExecutingRun


def forgotten_of(function: Any) -> list[list[int]]:
    """What each call of a workflow's function says, whose steps have the output `y`."""

    def answer(run: ExecutingRun, message: dict[str, Any]) -> None:
        if message["type"] == "fetch":
            asyncio.get_running_loop().call_soon(run.deliver, message["step"], {"y": 1})

    sent = messages_of(function, answer)
    assert sent[-1]["type"] == "done", sent[-1]
    return [each.get("forgotten", []) for each in sent if each["type"] == "step"]


def test_a_handle_that_is_replaced_is_forgotten_by_the_call_after_the_one_that_took_it() -> None:
    async def loop() -> None:
        step = Model("m")(x=1)
        for _ in range(4):
            step = Model("m")(x=step)

    assert forgotten_of(loop) == [[], [], [0], [1], [2]]


def test_a_handle_that_is_held_or_of_which_an_output_is_held_is_not_forgotten() -> None:
    async def hold() -> None:
        first, output = Model("m")(x=1), Model("m")(x=2)["y"]
        for _ in range(3):
            await Model("m")(x=first, z=output)

    assert forgotten_of(hold) == [[], [], [], [2], [3]]


def test_a_fetched_step_is_forgotten_with_its_handle() -> None:
    async def fetch() -> None:
        for _ in range(3):
            await Model("m")(x=1)

    assert forgotten_of(fetch) == [[], [0], [1]]
