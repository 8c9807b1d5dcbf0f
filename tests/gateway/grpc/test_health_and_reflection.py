"""What probes and clients such as grpcurl ask: gRPC's health and reflection, in process."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from common.inference_protocol.grpc_messages import INFERENCE
from gateway.grpc.messages import (
    HEALTH,
    NOT_SERVING,
    REFLECTION_PACKAGES,
    SERVICES,
    SERVING,
    message_class,
)
from gateway.grpc.server import health_handler, reflection_handlers


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
        request = message_class(f"{HEALTH}CheckRequest")(service=service)
        answer = await channel.unary_unary(f"/{HEALTH}/Check")(request.SerializeToString())
        status: int = message_class(f"{HEALTH}CheckResponse").FromString(answer).status
        return status

    found: int = asyncio.run(_served(ask, is_ready=is_ready))
    return found


@pytest.mark.parametrize("service", ["", INFERENCE])
def test_health(service: str) -> None:
    assert _check(service, is_ready=True) == SERVING
    assert _check(service, is_ready=False) == NOT_SERVING


def test_health_of_an_unknown_service() -> None:
    with pytest.raises(grpc.RpcError) as refused:
        _check("other", is_ready=True)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("package", REFLECTION_PACKAGES)
def test_reflection(package: str) -> None:
    request = message_class(f"{package}.ServerReflectionRequest")
    questions = [
        request(list_services="*"),
        request(file_containing_symbol=f"{INFERENCE}.ModelInfer"),
        request(file_containing_symbol="no.such.Symbol"),
        request(all_extension_numbers_of_type=INFERENCE),
    ]

    async def ask(channel: grpc.aio.Channel) -> list[bytes]:
        stream = channel.stream_stream(f"/{package}.ServerReflection/ServerReflectionInfo")
        sent = iter([each.SerializeToString() for each in questions])
        return [answer async for answer in stream(sent)]

    response = message_class(f"{package}.ServerReflectionResponse")
    names, file, unknown, extensions = map(response.FromString, asyncio.run(_served(ask)))
    assert [each.name for each in names.list_services_response.service] == list(SERVICES)
    (content,) = file.file_descriptor_response.file_descriptor_proto
    assert b"ModelInferRequest" in content
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert extensions.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert file.original_request == questions[1]
