"""Headers that are read, forwarded and dropped."""

import pytest

from gateway.errors import BadRequest
from gateway.http.headers import read_headers


def forwarded(*headers: tuple[bytes, bytes]) -> bytes:
    return b"\r\n" + read_headers(list(headers)).forwarded


@pytest.mark.parametrize(
    "name",
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "expect",
        "x-request-id",
        "k-network-probe",
        "k-proxy-request",
        "x-pilotlight-load-token",
        "x-pilotlight-reservation",
        "x-pilotlight-seed",
        "x-pilotlight-predict",
        "x-pilotlight-stage",
        "x-pilotlight-deadline-ms",
    ],
)
def test_header_is_not_forwarded(name: str) -> None:
    assert name.encode() not in forwarded((name.encode(), b"1"), (b"accept", b"*/*"))


@pytest.mark.parametrize(
    "name",
    ["authorization", "content-type", "x-pilotlight-simulate", "inference-header-content-length"],
)
def test_header_is_forwarded(name: str) -> None:
    assert b"\r\n" + name.encode() + b": kept\r\n" in forwarded((name.encode(), b"kept"))


@pytest.mark.parametrize("name", [b"x-pilotlight-run", b"x-pilotlight-following-ms"])
def test_headers_of_steps_are_forwarded_for_schedulers(name: bytes) -> None:
    """The gateway refuses them without the pods' secret: `attacks/test_step_headers.py`."""
    read = read_headers([(name, b"5")])
    assert read.step_header == name
    assert name + b": 5\r\n" in read.forwarded
    assert not read_headers([(b"x-request-id", b"5")]).step_header


def test_blanks_after_a_value_are_removed() -> None:
    """The parser does not (RFC 9110, section 5.5)."""
    read = read_headers([(b"content-length", b"12 "), (b"x-request-id", b"mine\t")])
    assert (read.content_length, read.request_id) == (12, "mine")


def test_headers_named_by_connection_are_not_forwarded() -> None:
    head = forwarded((b"x-hop", b"1"), (b"connection", b"Keep-Alive, X-Hop"), (b"x-far", b"2"))
    assert head == b"\r\nx-far: 2\r\n"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        pytest.param("x-pilotlight-deadline-ms", b"soon", "positive number", id="deadline-text"),
        pytest.param("x-pilotlight-deadline-ms", b"0", "positive number", id="deadline-zero"),
        pytest.param("x-pilotlight-deadline-ms", b"-5", "positive number", id="deadline-negative"),
        pytest.param("x-pilotlight-deadline-ms", b"nan", "positive number", id="deadline-nan"),
        pytest.param("x-pilotlight-deadline-ms", b"inf", "positive number", id="deadline-inf"),
        pytest.param("x-pilotlight-deadline-ms", b"", "positive number", id="deadline-empty"),
        pytest.param("x-pilotlight-deadline-ms", b"\xff", "positive number", id="deadline-bytes"),
        pytest.param("x-pilotlight-policy", b"magic", "must be one of auto", id="policy"),
        pytest.param("x-pilotlight-policy", b"\xff", "must be one of auto", id="policy-bytes"),
        pytest.param("x-pilotlight-seed", b"x", "whole number", id="seed"),
        pytest.param("x-request-id", b"a b", "visible ASCII", id="request-id-blank"),
        pytest.param("x-request-id", b"", "visible ASCII", id="request-id-empty"),
        pytest.param("x-request-id", b"a" * 129, "visible ASCII", id="request-id-long"),
        pytest.param("content-length", b"-1", "whole number", id="length"),
        pytest.param("content-length", "٣".encode(), "whole number", id="length-other-digits"),
    ],
)
def test_an_invalid_header_is_rejected_with_the_allowed_values(
    name: str, value: bytes, message: str
) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        read_headers([(name.encode(), value)])
    assert name in str(caught.value)
