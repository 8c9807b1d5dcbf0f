"""The picker's port, with grpcio's client and with raw frames; `tests/envoy` has a real Envoy."""

import socket
from collections.abc import Iterator

import grpc
import httpx
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from gateway.picker.process import DESTINATION, PROCESS
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.gateway.picker.streams import Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="module")
def port() -> int:
    return servers.free_port()


@pytest.fixture(scope="module")
def shared(
    redis: servers.RedisServer,
    client: httpx.Client,
    tmp_path_factory: pytest.TempPathFactory,
    port: int,
) -> Iterator[GatewayHarness]:
    folder = tmp_path_factory.mktemp("picker")
    settings = {"picker_port": port, "picker_tls": "off", "max_body_bytes": 100_000}
    with running_harness(folder, redis.url, "picker", client, **settings) as started:
        yield started


@pytest.fixture
def channel(shared: GatewayHarness, port: int) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened


def test_the_destination_is_in_header_and_metadata(
    shared: GatewayHarness, channel: grpc.Channel
) -> None:
    spec, pods = shared.start_warm_pod()
    stream = Stream(channel)
    path = f"/v1/models/{spec.name.name}:predict"
    answer = stream.send("request_headers", path=path, method="POST", content_length="2")
    address = f"127.0.0.1:{pods.ports['pod-a']}"
    mutation = answer.request_headers.response.header_mutation
    headers = {each.header.key: each.header.raw_value for each in mutation.set_headers}
    assert headers[DESTINATION] == address.encode()
    balancer = answer.dynamic_metadata.fields["envoy.lb"].struct_value
    assert balancer.fields[DESTINATION].string_value == address
    assert shared.metric("pilotlight_gateway_reservations") == 1
    assert stream.send("response_headers", status="200").HasField("response_headers")
    stream.end()
    assert list(stream.answers) == []
    shared.wait_idle(pods)


def test_only_endpoints_of_the_subset_are_picked(
    shared: GatewayHarness, channel: grpc.Channel
) -> None:
    spec = shared.declare()
    pods = shared.start_pods("pod-x", "pod-y", "pod-z", warm=spec)
    asked = {"path": f"/v1/models/{spec.name.name}:predict", "method": "POST"}
    for name, port in pods.ports.items():
        stream = Stream(channel)
        address = f"127.0.0.1:{port}"
        answer = stream.send("request_headers", [address, "127.0.0.1:9"], **asked)
        [first, *_] = answer.request_headers.response.header_mutation.set_headers
        assert (first.header.key, first.header.raw_value) == (DESTINATION, address.encode()), name
        stream.end()
    for subset in ([], ["127.0.0.1:9"]):
        answer = Stream(channel).send("request_headers", subset, **asked)
        assert answer.immediate_response.status.code == 503
        assert b"subset" in answer.immediate_response.body


def test_an_error_is_an_immediate_response(channel: grpc.Channel) -> None:
    answer = Stream(channel).send("request_headers", path="/v1/models/no:predict", method="POST")
    assert answer.immediate_response.status.code == 404
    assert b"does not exist" in answer.immediate_response.body


@pytest.mark.parametrize(
    "service", ["", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"]
)
def test_health(channel: grpc.Channel, service: str) -> None:
    assert health(channel, service) == HealthCheckResponse.SERVING


def test_health_of_an_unknown_service(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as error:
        health(channel, "other")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


def health(channel: grpc.Channel, service: str) -> int:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    status: int = check(HealthCheckRequest(service=service), timeout=30).status
    return status


def test_other_methods_and_messages_are_refused(channel: grpc.Channel) -> None:
    for path, content, code in (
        ("/other.Service/Method", b"", grpc.StatusCode.UNIMPLEMENTED),
        (PROCESS.decode(), b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (PROCESS.decode(), b"x" * 3_000_000, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ):
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(path)(content, timeout=30)
        assert error.value.code() is code


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http/1.1"),
        pytest.param(PREFACE + b"\xff\xff\xff\0\0\0\0\0\1", id="long-frame"),
        pytest.param(PREFACE + b"\0\0\1\1\4\0\0\0\2\x82", id="even-stream"),
        pytest.param(PREFACE + b"\0\0\1\1\4\0\0\0\1\xff", id="broken-block"),
        pytest.param(PREFACE + b"\0\0\1\0\0\0\0\0\7x", id="data-of-no-stream"),
        pytest.param(PREFACE + b"\0\0\0\1\0\0\0\0\1" + b"\0\0\0\4\0\0\0\0\0", id="no-continuation"),
        pytest.param(
            PREFACE
            + b"\0\0\1\1\0\0\0\0\1\x82"
            + b"".join(b"\0\x40\0\x09\0\0\0\0\1" + b"\x82" * 0x4000 for _ in range(9)),
            id="endless-headers",
        ),
    ],
)
def test_a_broken_connection_is_closed(shared: GatewayHarness, port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    assert b"\x07\0" in received  # GOAWAY
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert health(channel, "") == HealthCheckResponse.SERVING


def test_a_stream_is_of_one_request(shared: GatewayHarness, channel: grpc.Channel) -> None:
    spec, pods = shared.start_warm_pod()
    stream = Stream(channel)
    path = f"/v1/models/{spec.name.name}:predict"
    assert stream.send("request_headers", path=path, method="POST").HasField("request_headers")
    with pytest.raises(grpc.RpcError) as error:
        stream.send("request_headers", path=path, method="POST")
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    shared.wait_idle(pods)
