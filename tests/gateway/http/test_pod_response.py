"""Heads of pods' responses: what is read and forwarded, and which are kept."""

from __future__ import annotations

import pytest

from gateway.http.headers import MAX_KNOWN, MAX_KNOWN_HEADERS
from gateway.http.pod_response import KnownResponses, Shape, read_response, shape_of, stage_times_ms

KEY = b"HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\n"


def test_response_headers_are_split_into_forwarded_and_read() -> None:
    response = read_response(
        200,
        [
            (b"content-type", b"application/json"),
            (b"connection", b"close"),
            (b"transfer-encoding", b"chunked"),
            (b"x-request-id", b"pods"),
            (b"x-pilotlight-pod", b"pod-a"),
            (b"x-pilotlight-predict-pod", b"pod-b"),
            (b"x-pilotlight-start", b"disk"),
            (b"x-pilotlight-not-executed", b"slots"),
            (b"server-timing", b"load;dur=5"),
        ],
    )
    assert response.forwarded == b"content-type: application/json\r\n"
    assert response.content_type == b"application/json"
    assert (response.pod, response.predict_pod, response.start) == (b"pod-a", b"pod-b", "disk")
    assert response.not_executed == "slots"


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        (b"load;dur=5, infer;dur=1.5;desc=x, odd, bad;dur=?", (5.0, 0.0, 1.5, 0.0)),
        (
            b"load;dur=1.0, preprocess;dur=2.0, infer;dur=3.5, postprocess;dur=4.0",
            (1.0, 2.0, 3.5, 4.0),
        ),
        (b"", (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_times_of_stages_are_read(timing: bytes, expected: tuple[float, ...]) -> None:
    assert stage_times_ms(timing) == expected


def test_clients_see_that_a_pod_without_memory_executed_nothing() -> None:
    name = b"x-pilotlight-not-executed"
    response = read_response(507, [(name, b"no-memory"), (b"retry-after", b"1")])
    assert response.forwarded == name + b": no-memory\r\nretry-after: 1\r\n"


@pytest.mark.parametrize(
    ("key", "status", "headers", "is_kept"),
    [
        pytest.param(KEY, 200, [], True, id="usual"),
        pytest.param(KEY, 200, [(b"connection", b"keep-alive")], True, id="kept-open"),
        pytest.param(KEY, 200, [(b"connection", b"close")], False, id="closes"),
        pytest.param(KEY, 200, [(b"transfer-encoding", b"x")], False, id="coding"),
        pytest.param(
            KEY, 200, [(b"server-timing", b"a"), (b"server-timing", b"b")], False, id="twice"
        ),
        pytest.param(KEY.replace(b"200", b"103"), 200, [], False, id="interim"),
        pytest.param(KEY.replace(b"200", b"204"), 204, [], False, id="no-body"),
        pytest.param(KEY.replace(b"/1.1", b"/1.0"), 200, [], False, id="HTTP/1.0"),
        pytest.param(KEY + bytes(2048), 200, [], False, id="long"),
        pytest.param(
            KEY, 200, [(b"%d" % each, b"") for each in range(MAX_KNOWN_HEADERS)], False, id="many"
        ),
    ],
)
def test_only_usual_short_heads_are_kept(
    key: bytes, status: int, headers: list[tuple[bytes, bytes]], is_kept: bool
) -> None:
    known = KnownResponses()
    known.keep(
        Shape(key, b"", b"", True), read_response(status, [(b"content-length", b"2"), *headers])
    )
    assert bool(known) is is_kept


def test_the_number_of_known_heads_is_bounded() -> None:
    known, response = KnownResponses(), read_response(200, [])
    for number in range(2 * MAX_KNOWN):
        known.keep(Shape(b"HTTP/1.1 200 %d" % number, b"", b"", True), response)
        assert len(known) <= MAX_KNOWN


@pytest.mark.parametrize(
    ("head", "values"),
    [
        (b"a\r\ncontent-length: 3\r\n\r\n", (b"3", b"")),
        (b"a\r\nContent-Length: 3\r\nb: c\r\n\r\n", (b"3", b"")),
        (b"a\r\ncontent-length: 3\r\nb: c\r\nserver-timing: t\r\n\r\n", (b"3", b"t")),
        (b"a\r\nServer-Timing: t\r\nContent-Length: 3\r\nb: c\r\n\r\n", (b"3", b"t")),
    ],
)
def test_a_shape_gives_the_values_of_heads_like_it(
    head: bytes, values: tuple[bytes, bytes]
) -> None:
    shape = shape_of(head + b"abc")
    assert shape is not None
    assert shape.split(head + b"abc") == (*values, b"abc")
    assert shape.split(head.replace(b"3", b"14")) == (b"14", values[1], b"")
    assert shape.split(head.replace(b"a", b"b", 1)) is None


@pytest.mark.parametrize(
    "head", [b"a\r\ncontent-length: 3\r\n", b"a\r\n\r\n", b"a\r\nserver-timing: t\r\n\r\n"]
)
def test_a_head_without_an_end_or_a_length_has_no_shape(head: bytes) -> None:
    assert shape_of(head) is None
