from __future__ import annotations

import pytest

from registry.domain.pod import host_port


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.7", "10.0.0.7:8080"),
        ("pod-1.pods", "pod-1.pods:8080"),
        ("fd00::7", "[fd00::7]:8080"),
        ("[fd00::7]", "[fd00::7]:8080"),
    ],
)
def test_ipv6_addresses_are_bracketed(host: str, address: str) -> None:
    assert host_port(host, 8080) == address
