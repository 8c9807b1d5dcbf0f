"""What probes and clients such as grpcurl ask: gRPC's health and reflection, in process."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from common.inference_protocol.grpc_messages import INFERENCE
from gateway.grpc import HEALTH, REFLECTION, SERVICES, health_handler, reflection_handlers


async def _served(ask: Any, *, is_ready: bool = True) -> Any:
    server = grpc.aio.server(handlers=[health_handler(lambda: is_ready), *reflection_handlers()])
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


@pytest.mark.parametrize("service", REFLECTION)
def test_reflection(service: str) -> None:
    questions = [
        ServerReflectionRequest(list_services="*"),
        *(
            ServerReflectionRequest(file_containing_symbol=symbol)
            for symbol in (f"{INFERENCE}.ModelInfer", *SERVICES, "no.such.Symbol")
        ),
        ServerReflectionRequest(all_extension_numbers_of_type=INFERENCE),
    ]

    async def ask(channel: grpc.aio.Channel) -> list[bytes]:
        stream = channel.stream_stream(f"/{service}/ServerReflectionInfo")
        sent = iter([each.SerializeToString() for each in questions])
        return [answer async for answer in stream(sent)]

    answers = map(ServerReflectionResponse.FromString, asyncio.run(_served(ask)))
    names, file, *described, unknown, extensions = answers
    assert [each.name for each in names.list_services_response.service] == sorted(SERVICES)
    (content,) = file.file_descriptor_response.file_descriptor_proto
    assert b"ModelInferRequest" in content
    for name, each in zip(SERVICES, described, strict=True):
        (content,) = each.file_descriptor_response.file_descriptor_proto
        assert name.rpartition(".")[0].encode() in content
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert extensions.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert file.original_request == questions[1]
