from contextlib import ExitStack

import pytest

from gateway.dispatch.component_exchange import (
    MAX_NESTED,
    MAX_OF_ID,
    MAX_ONGOING,
    OWN_TRACE,
    ComponentCalls,
)
from gateway.errors import ComponentLoop, Rejected
from gateway.http.targets import ComponentTarget
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.request_telemetry import RequestTelemetry
from tests.gateway.asynchronous import run_async

TARGET = ComponentTarget("transformer", "a-transformer.team.svc:80", b"/v1/models/a:predict")
TRACE = OWN_TRACE + b"48485a3953bb6124"
OTHER = ComponentTarget("transformer", "b-transformer.team.svc:80", b"/v1/models/b:predict")


def make_calls() -> ComponentCalls:
    return ComponentCalls(RequestTelemetry(GatewayMetrics()))


@run_async
async def test_requests_at_one_component_are_bounded() -> None:
    calls = make_calls()
    with ExitStack() as stack:
        for number in range(MAX_ONGOING):
            stack.enter_context(calls.counted(TARGET, str(number), b""))
        with pytest.raises(Rejected) as rejected, calls.counted(TARGET, "more", b""):
            pass
        assert rejected.value.status == 429
        with calls.counted(OTHER, "more", b""):
            pass
    with calls.counted(TARGET, "more", b""):
        pass


@run_async
async def test_a_request_that_comes_back_is_stopped() -> None:
    calls = make_calls()
    with ExitStack() as stack:
        for _ in range(MAX_NESTED):
            stack.enter_context(calls.counted(TARGET, "same", TRACE))
        for request_id in ("same", "another"):
            with pytest.raises(ComponentLoop), calls.counted(TARGET, request_id, TRACE):
                pass
        with calls.counted(TARGET, "same", b"another"), calls.counted(OTHER, "same", TRACE):
            pass
    with calls.counted(TARGET, "same", TRACE):
        pass


@pytest.mark.parametrize("trace", ["463ac35c9f6413ad48485a3953bb6124", "{}"])
@run_async
async def test_requests_of_one_id_are_bounded_whatever_their_trace(trace: str) -> None:
    calls = make_calls()
    with ExitStack() as stack:
        for number in range(MAX_OF_ID):
            stack.enter_context(calls.counted(TARGET, "same", trace.format(number).encode()))
        with pytest.raises(ComponentLoop), calls.counted(TARGET, "same", TRACE):
            pass
        with calls.counted(TARGET, "another", TRACE), calls.counted(OTHER, "same", TRACE):
            pass
    with calls.counted(TARGET, "same", TRACE):
        pass
