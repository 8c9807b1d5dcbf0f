"""What a hostile client sends by HTTP/2: it is refused, and costs little."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.grpc.frames import frame, header_frames, literal
from common.grpc.server import HEALTH
from common.inference_protocol.grpc_messages import INFERENCE, messages
from gateway.grpc.inference_service import remaining_s, request_headers, sent_metadata
from tests import servers
from tests.gateway.grpc import calls

pytestmark = pytest.mark.slow

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
LIVE = f"/{INFERENCE}/ServerLive".encode()
BLOCK = b"\x83\x86" + literal(b":path", LIVE) + literal(b":authority", b"a")
OPEN = frame(HEADERS, 4, 1, BLOCK)
MESSAGE = b"\0\0\0\0\0"
MANY = 10_000


class Frames:
    """A connection whose frames are sent and read as they are."""

    def __init__(self, port: int, sent: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._received = b""
        self.send(sent)

    def send(self, sent: bytes) -> None:
        self._socket.sendall(sent)

    def close(self) -> None:
        self._socket.close()

    def read(self, *kinds: int) -> tuple[int, int, bytes]:
        """Kind, stream and content of the next frame of these kinds."""
        while True:
            kind, flags, number, content = self._next()
            if kind in kinds and not (flags & 1 and kind == SETTINGS):
                return kind, number, content

    def _next(self) -> tuple[int, int, int, bytes]:
        head = self._take(9)
        content = self._take(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), content

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            part = self._socket.recv(1 << 16)
            if not part:
                raise EOFError
            self._received += part
        taken, self._received = self._received[:size], self._received[size:]
        return taken


@pytest.fixture(scope="module")
def port(redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port, folder = servers.free_port(), tmp_path_factory.mktemp("attacks")
    with servers.gateway(folder, redis_url=redis.url, grpc_port=port, max_body_bytes=1_000_000):
        yield port


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(literal(b"a: b\r\nx-pilotlight-secret", b"c"), id="line-in-a-name"),
        pytest.param(literal(b"a", b"b\r\nx-pilotlight-secret: c"), id="line-in-a-value"),
        pytest.param(literal(b"a b", b"c"), id="blank-in-a-name"),
        pytest.param(literal(b"", b"c"), id="no-name"),
        pytest.param(literal(b"X-Pilotlight-Secret", b"c"), id="capitals"),
        pytest.param(literal(b"transfer-encoding", b"chunked"), id="of-http/1"),
        pytest.param(literal(b"connection", b"close"), id="of-connections"),
        pytest.param(literal(b"te", b"gzip"), id="other-te"),
        pytest.param(literal(b":path", LIVE), id="two-paths"),
        pytest.param(literal(b":other", b"a"), id="unknown-pseudo-header"),
        pytest.param(literal(b"a", b"b") + literal(b":scheme", b"http"), id="late-pseudo-header"),
    ],
)
def test_malformed_headers_are_refused(port: int, more: bytes) -> None:
    client = Frames(port, PREFACE + frame(HEADERS, 4, 1, BLOCK + more))
    client.send(frame(DATA, 1, 1, MESSAGE))
    assert client.read(HEADERS, RESET) == (RESET, 1, b"\0\0\0\1")
    client.send(frame(HEADERS, 4, 3, BLOCK) + frame(DATA, 1, 3, MESSAGE))
    assert client.read(HEADERS, RESET)[:2] == (HEADERS, 3)
    client.close()


def test_an_authority_that_is_no_text_is_refused(port: int) -> None:
    block = b"\x83\x86" + literal(b":path", LIVE) + literal(b":authority", b"\xff")
    client = Frames(port, PREFACE + frame(HEADERS, 4, 1, block))
    assert client.read(HEADERS, RESET)[:2] == (RESET, 1)
    client.close()


FULL = b"\x7f\xff\xff\xff"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(PING, 0, 0, bytes(9)), id="long-ping"),
        pytest.param(frame(PING, 0, 1, bytes(8)), id="ping-of-a-stream"),
        pytest.param(frame(SETTINGS, 0, 0, bytes(5)), id="short-settings"),
        pytest.param(frame(WINDOW, 0, 0, bytes(4)), id="no-window"),
        pytest.param(frame(SETTINGS, 1, 0, bytes(6)), id="settings-in-an-answer"),
        pytest.param(frame(SETTINGS, 0, 0, b"\0\2\0\0\0\2"), id="push-in-settings"),
        pytest.param(frame(SETTINGS, 0, 0, b"\0\5\0\0\0\1"), id="frame-size-in-settings"),
        pytest.param(frame(5, 4, 1, bytes(4)), id="push"),
        pytest.param(frame(2, 0, 0, bytes(5)), id="priority-of-the-connection"),
        pytest.param(frame(GOAWAY, 0, 1, bytes(8)), id="leave-of-a-stream"),
        pytest.param(OPEN + frame(CONTINUATION, 4, 1, b""), id="continuation-of-nothing"),
        pytest.param(frame(WINDOW, 0, 7, b"\0\0\0\1"), id="window-of-no-stream"),
        pytest.param(frame(RESET, 0, 7, bytes(4)), id="reset-of-no-stream"),
        pytest.param(frame(HEADERS, 4, 0, BLOCK), id="headers-of-the-connection"),
        pytest.param(OPEN + frame(HEADERS, 4, 1, BLOCK), id="trailers-that-go-on"),
        pytest.param(
            frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 4, 3, b""), id="other-continuation"
        ),
        pytest.param(
            frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, b"") * 20_000,
            id="empty-continuations",
        ),
        pytest.param(frame(PING, 0, 0, bytes(8)) * 25_000, id="pings"),
        pytest.param(frame(SETTINGS, 0, 0, b"") * 25_000, id="settings"),
    ],
)
def test_a_broken_connection_is_closed(port: int, sent: bytes) -> None:
    client = Frames(port, PREFACE)
    try:
        client.send(sent)
        assert client.read(GOAWAY)[2][4:] == b"\0\0\0\1"
    except (ConnectionResetError, BrokenPipeError):
        pass  # closed while the rest was on its way
    client.close()
    calls.send(port, "ServerLive", b"")


def test_a_window_that_is_too_large_has_its_own_error(port: int) -> None:
    client = Frames(port, PREFACE + OPEN + frame(WINDOW, 0, 1, FULL))
    assert client.read(RESET) == (RESET, 1, b"\0\0\0\3")
    client.close()
    for sent in (frame(WINDOW, 0, 0, FULL), frame(SETTINGS, 0, 0, b"\0\4\x80\0\0\0")):
        client = Frames(port, PREFACE + sent)
        assert client.read(GOAWAY)[2][4:] == b"\0\0\0\3"
        client.close()


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x86" + literal(b":path", LIVE), id="no-method"),
        pytest.param(b"\x83" + literal(b":path", LIVE), id="no-scheme"),
        pytest.param(b"\x83\x86", id="no-path"),
        pytest.param(b"\x83\x86" + literal(b":path", b""), id="empty-path"),
    ],
)
def test_a_request_has_method_scheme_and_path(port: int, block: bytes) -> None:
    client = Frames(port, PREFACE + frame(HEADERS, 5, 1, block))
    assert client.read(HEADERS, RESET) == (RESET, 1, b"\0\0\0\1")
    client.close()


def test_what_follows_a_calls_end_is_not_taken(port: int) -> None:
    window = frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0")  # so that the answer waits
    client = Frames(port, PREFACE + window + OPEN + frame(DATA, 1, 1, MESSAGE) * 2)
    assert client.read(GOAWAY)
    client.close()


@pytest.mark.parametrize(
    ("kind", "block", "content"),
    [
        pytest.param(RESET, BLOCK, bytes(4), id="resets"),
        pytest.param(WINDOW, BLOCK, FULL, id="windows"),
        pytest.param(WINDOW, b"\x83", b"\0\0\0\1", id="malformed"),
    ],
)
def test_calls_reset_without_end_close_the_connection(
    port: int, kind: int, block: bytes, content: bytes
) -> None:
    begun = (frame(HEADERS, 4, 2 * at + 1, block) for at in range(3 * MANY))
    resets = (frame(kind, 0, 2 * at + 1, content) for at in range(3 * MANY))
    sent = [one + other for one, other in zip(begun, resets, strict=True)]
    client = Frames(port, PREFACE + b"".join(sent[: MANY // 2]) + frame(PING, 0, 0, bytes(8)))
    assert client.read(PING, GOAWAY)[0] == PING
    with contextlib.suppress(ConnectionError):
        for at in range(MANY // 2, len(sent), 100):
            client.send(b"".join(sent[at : at + 100]))
    with pytest.raises((EOFError, ConnectionError)):
        client.read()
    client.close()


def test_begun_messages_count_as_held_bodies(redis: servers.RedisServer, tmp_path: Path) -> None:
    port, begun = servers.free_port(), b"\0\0\1\0\0" + bytes(10_000)
    limits: dict[str, Any] = {"grpc_port": port, "held_body_bytes": 1_000_000}
    with servers.gateway(tmp_path, redis_url=redis.url, **limits):
        client = Frames(port, PREFACE)
        for at in range(99):
            client.send(frame(HEADERS, 4, 2 * at + 1, BLOCK) + frame(DATA, 0, 2 * at + 1, begun))
        client.send(frame(HEADERS, 4, 199, BLOCK) + frame(DATA, 0, 199, begun))
        kind, number, content = client.read(HEADERS)
        assert (kind, number) == (HEADERS, 199)
        assert b"grpc-status\x0214" in content
        client.send(frame(RESET, 0, 1, bytes(4)) + frame(RESET, 0, 3, bytes(4)))
        client.send(frame(HEADERS, 4, 201, BLOCK) + frame(DATA, 0, 201, begun))
        client.send(frame(PING, 0, 0, bytes(8)))
        assert client.read(HEADERS, PING)[0] == PING
        client.close()
        other = Frames(port, PREFACE)  # the end of a connection frees what it held
        for at in range(90):
            other.send(frame(HEADERS, 4, 2 * at + 1, BLOCK) + frame(DATA, 0, 2 * at + 1, begun))
        other.send(frame(HEADERS, 4, 201, BLOCK) + frame(DATA, 1, 201, MESSAGE))
        assert other.read(HEADERS)[1] == 201
        other.close()


def test_settings_and_windows_cost_the_same_with_many_calls(port: int) -> None:
    client = Frames(port, PREFACE)
    client.send(b"".join(frame(HEADERS, 4, 2 * at + 1, BLOCK) for at in range(MANY)))
    client.send(frame(SETTINGS, 0, 0, b"\0\4\0\0\1\0" * 2700) * 10)
    client.send(frame(WINDOW, 0, 0, b"\0\0\0\1") * MANY)
    client.send(frame(PING, 0, 0, bytes(8)))
    assert client.read(PING)  # in the socket's time
    client.send(frame(HEADERS, 4, 2 * MANY + 1, BLOCK))
    assert client.read(RESET) == (RESET, 2 * MANY + 1, b"\0\0\0\7")  # more than are allowed
    client.close()


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 50_000])
def test_a_long_block_has_several_frames(size: int) -> None:
    left, block, kinds = header_frames(1, 5, bytes(size) + b"end"), b"", []
    while left:
        length = int.from_bytes(left[:3], "big")
        assert length <= 16_384
        kinds.append((left[3], left[4]))
        block, left = block + left[9 : 9 + length], left[9 + length :]
    assert block == bytes(size) + b"end"
    assert [kind for kind, _ in kinds] == [HEADERS] + [CONTINUATION] * (len(kinds) - 1)
    assert [flags & 4 for _, flags in kinds] == [0] * (len(kinds) - 1) + [4]
    assert kinds[0][1] & 1


@pytest.mark.parametrize(
    ("text", "time_s"),
    [
        (b"1H", 3600.0), (b"2M", 120.0), (b"3S", 3.0), (b"40m", 0.04), (b"50u", 5e-5),
        (b"0S", 0.0), (b"99999999H", 99_999_999 * 3600.0), (b"", None), (b"S", None),
        (b"-1S", None), (b"1.5S", None), (b"1s", None), (b"1", None), (b"9" * 400 + b"S", None),
        (b"9" * 5000 + b"S", None),
    ],
)  # fmt: skip
def test_a_calls_time(text: bytes, time_s: float | None) -> None:
    found = remaining_s([(b"grpc-timeout", text)])
    assert found == (None if time_s is None else pytest.approx(time_s))
    deadlines = dict(request_headers([], size=1, remaining_s=found))
    assert 0 < float(deadlines.get(b"x-pilotlight-deadline-ms", b"1")) <= 86_400_000


def test_a_pods_headers_cannot_break_the_answer() -> None:
    kept = [(b"x-request-id", b"a"), (b"server", b"b")]
    wrong = (b"Transfer-Encoding", b"keep-alive", b"Grpc-Status", b"a b", b":status", b"")
    given = [kept[0], *((name, b"1") for name in wrong), (b"Server", b"b")]
    assert sent_metadata(given) == kept


def test_packed_messages_have_the_same_bound(port: int) -> None:
    for path, size in ((LIVE.decode(), 5_000_000), (HEALTH.decode(), 100_000)):
        with calls.channel(port) as channel, pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(path)(bytes(size), timeout=30, compression=grpc.Compression.Gzip)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "when it is unpacked" in error.value.details()


def test_a_packed_message_is_read(port: int) -> None:
    request = messages.ModelInferRequest(model_name="unknown", id="x" * 5000)
    with calls.channel(port) as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(f"/{INFERENCE}/ModelInfer")(
            request.SerializeToString(), timeout=30, compression=grpc.Compression.Gzip
        )
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert "unknown" in error.value.details()


@pytest.fixture(scope="module")
def strict(redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """With a time that a test can wait for."""
    port, folder = servers.free_port(), tmp_path_factory.mktemp("strict")
    program = ("tests.with_constants", "common.grpc.http2:_CHECK_S=0.3", "gateway")
    with servers.gateway(folder, redis_url=redis.url, grpc_port=port, program=program):
        yield port


def test_a_connection_without_preface_is_closed(strict: int) -> None:
    client = Frames(strict, PREFACE[:10])
    with pytest.raises((EOFError, ConnectionError)):
        client.read()
    client.close()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(OPEN + frame(DATA, 0, 1, b"\0\0\0\1\0begun"), id="message"),
        pytest.param(OPEN + frame(DATA, 0, 1, b"\0\0\0\0\5whole"), id="end"),
        pytest.param(
            frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0") + OPEN + frame(DATA, 1, 1, MESSAGE), id="answer"
        ),
    ],
)
def test_a_call_that_stands_still_is_reset(strict: int, sent: bytes) -> None:
    client = Frames(strict, PREFACE + sent)
    assert client.read(RESET) == (RESET, 1, b"\0\0\0\x08")
    client.send(frame(PING, 0, 0, bytes(8)))
    assert client.read(PING)  # other calls go on
    client.close()


def test_a_drain_ends_with_the_last_call(redis: servers.RedisServer, tmp_path: Path) -> None:
    port = servers.free_port()
    with servers.gateway(tmp_path, redis_url=redis.url, grpc_port=port, drain_timeout=600) as one:
        client = Frames(port, PREFACE + OPEN + frame(PING, 0, 0, bytes(8)))
        assert client.read(PING)
        one.process.terminate()
        assert client.read(GOAWAY) == (GOAWAY, 0, b"\0\0\0\1" + bytes(4))
        client.send(frame(HEADERS, 4, 3, BLOCK))
        assert client.read(RESET) == (RESET, 3, b"\0\0\0\7")  # clients try these elsewhere
        client.send(frame(RESET, 0, 1, bytes(4)))
        with pytest.raises((EOFError, ConnectionError)):
            client.read()
        client.close()
        one.process.wait(timeout=30)
