"""The two gRPC ports by h2spec 2.2.1, which tests HTTP/2 servers (RFC 7540, RFC 7541)."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests import servers

PROGRAM = os.environ.get("PILOTLIGHT_H2SPEC", "")

CLOSED = {
    "5.1: half closed (remote): Sends a DATA frame",
    "5.1: half closed (remote): Sends a HEADERS frame",
    "5.1: closed: Sends a DATA frame after sending RST_STREAM frame",
    "5.1: closed: Sends a HEADERS frame after sending RST_STREAM frame",
    "5.1: closed: Sends a DATA frame",
    "5.1: closed: Sends a HEADERS frame",
    "5.1.1: Sends stream identifier that is numerically smaller than previous",
    '6.1: Sends a DATA frame on the stream that is not in "open" or "half-closed (local)" state',
}
"""Frames of ended calls are ignored, as a server must those of calls that it ended itself: which
side ended a call is forgotten with it."""
ANSWERED = {
    "2: Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
    "2: Sends a PRIORITY frame on half-closed (remote) stream",
    "5.1.2: Sends HEADERS frames that causes their advertised concurrent stream limit to be"
    " exceeded",
}
"""h2spec waits for a body, and for more than 10,000 calls at once: an unknown method is answered at
once, by trailers alone. `test_attacks` exceeds the limit."""
PRIORITIES = {
    "5.3.1: Sends HEADERS frame that depend on itself",
    "5.3.1: Sends PRIORITY frame that depend on itself",
}
"""RFC 9113 has no priorities any more."""
LENGTHS = {
    '8.1.2.6: Sends a HEADERS frame with the "content-length" header field which does not equal the'
    " DATA frame payload length",
    '8.1.2.6: Sends a HEADERS frame with the "content-length" header field which does not equal the'
    " sum of the multiple DATA frames payload length",
}
"""gRPC's messages have lengths of their own; the header is neither used nor passed on."""


@pytest.fixture(scope="module")
def ports(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, int]]:
    if not PROGRAM:
        pytest.skip("needs h2spec, which Go builds: make test-envoy")
    found = {"grpc": servers.free_port(), "picker": servers.free_port()}
    options: dict[str, Any] = {
        "grpc_port": found["grpc"],
        "picker_port": found["picker"],
        "picker_tls": "off",
    }
    with servers.gateway(tmp_path_factory.mktemp("h2spec"), redis_url=redis.url, **options):
        yield found


@pytest.mark.parametrize("name", ["grpc", "picker"])
def test_h2spec_finds_nothing_that_matters(
    ports: dict[str, int], tmp_path: Path, name: str
) -> None:
    report = tmp_path / "report.xml"
    target = ["-h", "127.0.0.1", "-p", str(ports[name]), "-o", "3", "-j", str(report)]
    subprocess.run([PROGRAM, *target], capture_output=True, check=False, timeout=600)
    cases = [
        (f"{suite.get('id')}: {case.get('classname')}", case)
        for suite in ElementTree.parse(report).iter("testsuite")
        for case in suite.iter("testcase")
    ]
    failed = {what for what, case in cases if case.find("error") is not None}
    assert len(cases) > 140
    assert failed == CLOSED | ANSWERED | PRIORITIES | LENGTHS
