from contextlib import ExitStack

import pytest

from gateway.dispatch.component_exchange import MAX_OF_ID, MAX_ONGOING, ComponentCalls
from gateway.errors import ComponentLoop, Rejected
from gateway.http.targets import ComponentTarget
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.request_telemetry import RequestTelemetry
from tests.gateway.asynchronous import run_async

TARGET = ComponentTarget("transformer", "a-transformer.team.svc:80", b"/v1/models/a:predict")
OTHER = ComponentTarget("transformer", "b-transformer.team.svc:80", b"/v1/models/b:predict")


def make_calls() -> ComponentCalls:
    return ComponentCalls(RequestTelemetry(GatewayMetrics()))


@run_async
async def test_requests_at_one_component_are_bounded() -> None:
    calls = make_calls()
    with ExitStack() as stack:
        for number in range(MAX_ONGOING):
            stack.enter_context(calls.counted(TARGET, str(number)))
        with pytest.raises(Rejected) as rejected, calls.counted(TARGET, "more"):
            pass
        assert rejected.value.status == 429
        with calls.counted(OTHER, "more"):
            pass
    with calls.counted(TARGET, "more"):
        pass


@run_async
async def test_requests_of_one_id_are_bounded() -> None:
    calls = make_calls()
    with ExitStack() as stack:
        for _ in range(MAX_OF_ID):
            stack.enter_context(calls.counted(TARGET, "same"))
        with pytest.raises(ComponentLoop), calls.counted(TARGET, "same"):
            pass
        with calls.counted(TARGET, "another"), calls.counted(OTHER, "same"):
            pass
    with calls.counted(TARGET, "same"):
        pass
