"""Frames of any kind, in any order, at the two gRPC ports: no crash, no hang, no lasting memory."""

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from common.grpc.frames import frame, literal
from common.inference_protocol.grpc_messages import INFERENCE
from gateway.picker.process import PROCESS
from tests import servers
from tests.gateway.grpc import calls
from tests.gateway.grpc.test_attacks import GOAWAY, PING, PREFACE, Frames

MAX_GROWTH_BYTES = 64 << 20
PATHS = (f"/{INFERENCE}/ModelInfer".encode(), PROCESS, b"/grpc.health.v1.Health/Check", b"/other")
NAMES = (b"te", b"grpc-timeout", b"grpc-encoding", b"content-length", b":path", b"a")


@dataclass
class Ports:
    grpc: int
    picker: int
    pid: int

    def memory_bytes(self) -> int:
        found = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(found[1]) * resource.getpagesize()


@pytest.fixture(scope="module")
def ports(redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    folder: Path = tmp_path_factory.mktemp("frames")
    grpc, picker = servers.free_port(), servers.free_port()
    options: dict[str, Any] = {"grpc_port": grpc, "picker_port": picker, "picker_tls": "off"}
    with servers.gateway(folder, redis_url=redis.url, **options) as started:
        yield Ports(grpc, picker, started.process.pid)


streams = st.sampled_from((0, 1, 1, 3, 5, 2, 2**31 - 1))
flags = st.sampled_from((0, 1, 4, 5, 8, 0xD, 0x2C, 0xFF))
pairs = st.builds(literal, st.sampled_from(NAMES), st.binary(max_size=20))
blocks = st.builds(
    lambda path, more: b"\x83\x86" + literal(b":path", path) + b"".join(more),
    st.sampled_from(PATHS),
    st.lists(pairs, max_size=3),
)
messages = st.builds(
    lambda packed, extra, content: (
        bytes((packed,)) + max(0, len(content) + extra).to_bytes(4, "big") + content
    ),
    st.integers(0, 2),
    st.sampled_from((0, 0, 1, -1, 5000, 2**31)),
    st.binary(max_size=200),
)
headers = st.builds(frame, st.just(1), st.sampled_from((4, 4, 5, 0)), streams, blocks)
data = st.builds(frame, st.just(0), st.sampled_from((0, 0, 1, 8)), streams, messages)
others = st.builds(frame, st.integers(0, 12), flags, streams, st.binary(max_size=40))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpc", "picker"])
def test_any_frames_are_survived(ports: Ports, name: str) -> None:
    port: int = getattr(ports, name)
    calls.send(port, "/grpc.health.v1.Health/Check", b"")
    before = ports.memory_bytes()

    @seed(1)
    @settings(
        max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(st.one_of(headers, data, others), max_size=12), st.booleans())
    def survived(frames: list[bytes], is_cut: bool) -> None:
        sent = b"".join(frames)
        client = Frames(port, PREFACE)
        try:
            client.send(sent[: len(sent) // 2] if is_cut else sent)
            client.send(frame(PING, 0, 0, b"are here"))
            if not is_cut:
                assert client.read(PING, GOAWAY)  # within the socket's time
        except (ConnectionError, EOFError):
            pass  # closed as broken
        finally:
            client.close()

    survived()
    calls.send(port, "/grpc.health.v1.Health/Check", b"")
    assert ports.memory_bytes() < before + MAX_GROWTH_BYTES
