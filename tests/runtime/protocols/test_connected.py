"""Work of a request that ends with its client."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from runtime.errors import PodDraining
from runtime.protocols.asgi_app import receive_body
from runtime.serving.in_flight import InFlightRequests, RequestAborted, StepQueue, while_connected


class Client:
    """The ASGI side of a connection; `leave` closes it."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()
        self.leave = self._gone.set

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}


def run(test: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    """Run the test; checks that no task is left but cancelled ones."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await test(Client())
            left = asyncio.all_tasks() - {asyncio.current_task()}
            ended = await asyncio.gather(*left, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)

    asyncio.run(main())


def test_gives_the_result_and_leaves_no_task() -> None:
    async def test(client: Client) -> None:
        assert await while_connected(client.receive, asyncio.sleep(0, 3)) == 3

    run(test)


def test_a_disconnect_cancels_the_work() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def test(client: Client) -> None:
        asyncio.get_running_loop().call_soon(client.leave)
        with pytest.raises(RequestAborted):
            await while_connected(client.receive, work())
        await asyncio.sleep(0)  # the caller itself is not cancelled

    run(test)
    assert ended == ["cancelled"]


def test_work_ends_before_the_request_does() -> None:
    """What it must release, it has released when the request ends."""
    released: list[None] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            released.append(None)

    async def test(client: Client) -> None:
        client.leave()
        with pytest.raises(RequestAborted):
            await while_connected(client.receive, work())
        assert released

    run(test)


def test_a_timeout_of_the_work_is_its_own() -> None:
    async def fail() -> None:
        raise TimeoutError("of the work")

    async def test(client: Client) -> None:
        with pytest.raises(TimeoutError, match="of the work"):
            await while_connected(client.receive, fail())

    run(test)


def test_cancelling_the_request_cancels_the_work() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def test(client: Client) -> None:
        request = asyncio.ensure_future(while_connected(client.receive, work()))
        await begun.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert ended.is_set()

    run(test)


def test_a_disconnect_at_the_moment_of_the_result_is_no_error() -> None:
    errors: list[dict[str, Any]] = []

    async def test(client: Client) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        result = loop.create_future()

        async def work() -> int:
            return int(await result)

        def end_both() -> None:  # the result is there one callback before the disconnect is
            loop.call_soon(result.set_result, 3)
            client.leave()

        loop.call_soon(loop.call_soon, end_both)  # once the disconnect is waited for
        assert await while_connected(client.receive, work()) == 3
        await asyncio.sleep(0)

    run(test)
    assert errors == []


def test_a_request_whose_body_has_not_come_is_refused_once_the_pod_drains() -> None:
    in_flight = InFlightRequests("pod-a", slots=1, step_queue=StepQueue())

    async def receive() -> dict[str, Any]:
        in_flight.is_draining = True
        return {"type": "http.request", "body": b"", "more_body": True}

    async def test(_: Client) -> None:
        with pytest.raises(PodDraining):
            await receive_body({"content-length": "5"}, receive, 10, in_flight)

    run(test)
