"""A gateway without applications imports nothing of them."""

from pathlib import Path

import httpx
import pytest

from tests import servers
from tests.gateway.end_to_end.test_applications import _ask, _declare
from tests.gateway.gateway_harness import running_harness


@pytest.mark.slow
def test_a_gateway_imports_variants_once_an_application_is_declared(
    redis: servers.RedisServer,
    pool: str,
    client: httpx.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # each import is a line of its log
    with running_harness(tmp_path, redis.url, pool, client) as harness:
        plain = harness.declare("plain")
        harness.start_pods("pod-p", warm=plain)
        harness.wait_synced()
        assert harness.predict(plain).status_code == 200
        for path in ("/v2/models/plain", "/v1/models", "/metrics"):
            client.get(f"{harness.gateway.url}{path}")
        assert " gateway.dispatch.request " in _imports(harness.gateway)
        assert "variants" not in _imports(harness.gateway)
        _declare(harness)
        assert _ask(harness).status_code == 200
        assert "variants.open_windows" in _imports(harness.gateway)


def _imports(gateway: servers.Gateway) -> str:
    return " ".join(
        line + " " for line in gateway.log.split("\n") if line.startswith("import time:")
    )
