"""Host headers that would block the event loop, or that two readers could understand differently.

RFC 9112, section 3.2: exactly one Host, or 400.
"""

import pytest

from tests.gateway.gateway_harness import GatewayHarness, exchange_bytes
from tests.servers import cpu_s

LONG_LABEL = b"a-" * 31_000 + b".b"
PATHS = (b"/v1/models/m:predict", b"/v1/models/m")
"""Served by the gateway itself, and by its management API."""


def request(path: bytes, *lines: bytes, version: bytes = b"1.1") -> bytes:
    head = [b"POST %b HTTP/%b" % (path, version), *lines, b"content-length: 0", b"", b""]
    return b"\r\n".join(head)


@pytest.mark.parametrize("path", PATHS)
def test_a_host_of_many_dashes_does_not_block_the_gateway(
    harness: GatewayHarness, path: bytes
) -> None:
    used_s = cpu_s(harness.gateway.process.pid)
    response = exchange_bytes(
        harness.gateway.port, request(path, b"host: " + LONG_LABEL), timeout_s=600
    )
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"host may have 255 bytes, has 62002" in response
    assert cpu_s(harness.gateway.process.pid) - used_s < 2.0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        pytest.param([b"host: a.b", b"host: c.d"], b"had 2", id="two"),
        pytest.param([b"host: a.b", b"Host: a.b"], b"had 2", id="two-of-one-value"),
        pytest.param([], b"had 0", id="none"),
        pytest.param([b"host: " + b"a." * 127 + b"aa"], b"255 bytes, has 256", id="long"),
        pytest.param([b"host: x." + b"a" * 64 + b".com"], b"63 bytes, has 64", id="long-label"),
    ],
)
def test_a_request_without_exactly_one_short_host_is_400(
    shared: GatewayHarness, path: bytes, hosts: list[bytes], message: bytes
) -> None:
    response = exchange_bytes(shared.gateway.port, request(path, *hosts))
    assert response.startswith(b"HTTP/1.1 400 ")
    assert message in response


@pytest.mark.parametrize("path", PATHS)
def test_http_1_0_needs_no_host(shared: GatewayHarness, path: bytes) -> None:
    response = exchange_bytes(shared.gateway.port, request(path, version=b"1.0"))
    assert response.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))


def test_the_longest_host_is_read(shared: GatewayHarness) -> None:
    host = b".".join([b"a" * 63] * 3 + [b"b" * 63]) + b":80"
    response = exchange_bytes(shared.gateway.port, request(PATHS[0], b"host: " + host[:255]))
    assert response.startswith(b"HTTP/1.1 404 ")
