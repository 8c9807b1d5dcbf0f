from __future__ import annotations

import pytest

from registry.domain.pod import address_of


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.7", "10.0.0.7:8080"),
        ("pod-1.pods", "pod-1.pods:8080"),
        ("fd00::7", "[fd00::7]:8080"),
        ("[fd00::7]", "[fd00::7]:8080"),
    ],
)
def test_addresses_of_ipv6_stand_in_brackets(host: str, address: str) -> None:
    assert address_of(host, 8080) == address
