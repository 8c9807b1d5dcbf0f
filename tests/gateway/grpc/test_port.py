"""The port: gRPC's health, which probes ask, frames of any form, compression."""

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from hpack import Decoder
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from common.grpc.frames import header_fragment, literal
from common.grpc.server import HEALTH
from common.inference_protocol.grpc_messages import INFERENCE
from tests import servers
from tests.gateway.grpc import calls


@pytest.fixture(scope="module")
def port(redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = servers.free_port()
    with servers.gateway(tmp_path_factory.mktemp("health"), redis_url=redis.url, grpc_port=port):
        yield port


def check(port: int, service: str) -> int:
    content = HealthCheckRequest(service=service).SerializeToString()
    status: int = HealthCheckResponse.FromString(
        calls.send(port, HEALTH.decode(), content)[0]
    ).status
    return status


@pytest.mark.parametrize("service", ["", INFERENCE, "grpc.health.v1.Health"])
def test_health(port: int, service: str) -> None:
    assert check(port, service) == HealthCheckResponse.SERVING


@pytest.mark.slow
def test_health_before_the_registry_was_read(tmp_path: Path) -> None:
    port = servers.free_port()
    nothing = f"redis://127.0.0.1:{servers.free_port()}"
    with servers.gateway(tmp_path, redis_url=nothing, grpc_port=port, wait_ready=False):
        with calls.channel(port) as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
        assert check(port, "") == HealthCheckResponse.NOT_SERVING


def test_health_of_an_unknown_service(port: int) -> None:
    error = calls.refused(
        port, HEALTH.decode(), HealthCheckRequest(service="other").SerializeToString()
    )
    assert error.code() is grpc.StatusCode.NOT_FOUND


def frame(kind: int, flags: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, 1)) + content


PATH = HEALTH.decode().encode()
BLOCK = b"\x83\x86\x44" + bytes((len(PATH),)) + PATH
MESSAGE = b"\0\0\0\0\0"
HEADERS = {
    "one frame": frame(1, 0x4, BLOCK),
    "with padding": frame(1, 0xC, b"\x02" + BLOCK + b"\0\0"),
    "with priority": frame(1, 0x24, b"\0\0\0\0\x10" + BLOCK),
    "with a continuation": frame(1, 0, BLOCK[:5]) + frame(9, 0x4, BLOCK[5:]),
}
DATA = {
    "one frame": frame(0, 1, MESSAGE),
    "with padding": frame(0, 9, b"\x02" + MESSAGE + b"\0\0"),
    "two frames": frame(0, 0, MESSAGE[:2]) + frame(0, 1, MESSAGE[2:]),
}


@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("step", [1, 10_000])
def test_frames_of_any_form_and_in_any_pieces(
    port: int, headers: str, data: str, step: int
) -> None:
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b"")[:5] + bytes(4)
    sent += HEADERS[headers] + DATA[data]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(sent), step):
            connection.sendall(sent[at : at + step])
        received = b""
        while b"grpc-status\x010" not in received:
            part = connection.recv(1 << 16)
            assert part, received
            received += part


def test_an_answer_waits_for_its_clients_window(port: int) -> None:
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\6\4" + bytes(5) + b"\0\4\0\0\0\2"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent + HEADERS["one frame"] + DATA["one frame"])
        received = b""
        while b"\0\0\2\0\0\0\0\0\1" not in received:  # a frame of two bytes
            received += connection.recv(1 << 16)
        assert b"grpc-status" not in received
        connection.sendall(frame(8, 0, b"\0\0\0\x09"))
        while b"grpc-status\x010" not in received:
            received += connection.recv(1 << 16)


@given(st.binary(max_size=300).map(bytes), st.binary(max_size=20_000))
def test_a_literal_is_read_again(name: bytes, value: bytes) -> None:
    assert Decoder(1 << 20).decode(literal(name, value), raw=True) == [(name, value)]


@pytest.mark.parametrize("content", [b"", b"\x05ab", b"\x01"])
def test_padding_longer_than_its_frame_is_refused(content: bytes) -> None:
    with pytest.raises(HPACKError):
        header_fragment(frame(1, 0xC, content))


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_clients_may_compress(port: int, compression: grpc.Compression) -> None:
    with calls.channel(port) as channel:
        request = HealthCheckRequest(service="x" * 5000).SerializeToString()
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(HEALTH.decode())(request, timeout=30, compression=compression)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
