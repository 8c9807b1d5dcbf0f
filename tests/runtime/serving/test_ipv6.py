"""Everything at IPv6 addresses: Redis, a pod and a gateway."""

import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests import servers
from tests.runtime.conftest import Cluster

ADDRESS = "::1"


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind((ADDRESS, 0))
        except OSError:
            return False
    return True


@pytest.mark.slow  # a Redis, a pod and a gateway of its own
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 on its loopback interface")
def test_a_model_is_served_without_ipv4(
    forkserver: servers.Forkserver, models: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        options = ("--bind", ADDRESS, "127.0.0.1")  # the second one for the harness alone
        redis = stack.enter_context(servers.redis_server(tmp_path / "redis", options=options))
        url = f"redis://[{ADDRESS}]:{redis.port}/0"
        cluster = Cluster(stack, forkserver=forkserver, redis_url=url, folder=tmp_path / "pods")
        spec = cluster.declare("six", models / "tiny-bert")
        cluster.pod(host=ADDRESS, advertise=ADDRESS)
        gateway = stack.enter_context(
            servers.gateway(tmp_path, redis_url=url, pool=cluster.pool, host=ADDRESS)
        )
        assert gateway.url.startswith("http://[::1]:")
        answer = httpx.post(
            f"{gateway.url}/v1/models/{spec.name.name}:predict",
            json={"instances": ["hello"]},
            trust_env=False,
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-pilotlight-start"] == "remote"
