"""What probes ask: gRPC's health, in process."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from common.inference_protocol.grpc_messages import INFERENCE
from gateway.grpc import HEALTH, health_handler


async def _served(ask: Any, *, is_ready: bool = True) -> Any:
    server = grpc.aio.server(handlers=[health_handler(lambda: is_ready)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        options = [("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            return await ask(channel)
    finally:
        await server.stop(None)


def _check(service: str, *, is_ready: bool) -> int:
    async def ask(channel: grpc.aio.Channel) -> int:
        request = HealthCheckRequest(service=service)
        answer = await channel.unary_unary(f"/{HEALTH}/Check")(request.SerializeToString())
        status: int = HealthCheckResponse.FromString(answer).status
        return status

    found: int = asyncio.run(_served(ask, is_ready=is_ready))
    return found


@pytest.mark.parametrize("service", ["", INFERENCE])
def test_health(service: str) -> None:
    assert _check(service, is_ready=True) == HealthCheckResponse.SERVING
    assert _check(service, is_ready=False) == HealthCheckResponse.NOT_SERVING


def test_health_of_an_unknown_service() -> None:
    with pytest.raises(grpc.RpcError) as refused:
        _check("other", is_ready=True)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
