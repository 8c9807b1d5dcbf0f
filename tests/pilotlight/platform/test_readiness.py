"""Ports: that of another program is named with the flag that chooses one."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pilotlight.errors import StartFailed
from pilotlight.platform import readiness
from pilotlight.platform.process_specs import pod_settings
from pilotlight.platform.settings import PlatformSettings
from pilotlight.state_dir import StateDir


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--port", "choose another with --port, or any free one with --port 0"),
        ("--grpc-port", "choose another with --grpc-port, or none with --grpc-port 0"),
    ],
)
def test_a_port_in_use_names_its_flag(
    monkeypatch: pytest.MonkeyPatch, flag: str, remedy: str
) -> None:
    monkeypatch.setattr(readiness, "_PORT_TIMEOUT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"port {port} of 127.0.0.1 is in use by another program: {remedy}"
        with pytest.raises(StartFailed, match=f"^{expected}$"):
            asyncio.run(readiness.wait_for_port("127.0.0.1", port, flag=flag))


def test_no_pod_asks_for_the_port_of_another() -> None:
    settings = PlatformSettings(StateDir.default(), objects=StateDir.default().objects)
    assert pod_settings(settings, "pod-0", redis_url="")["grpc_port"] == 0
