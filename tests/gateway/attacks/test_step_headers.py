"""Headers of schedulers of workflows, sent by a client that has not the pods' secret."""

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from common.pod_secret import HEADER, make_secret
from tests import servers


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["x-pilotlight-run", "x-pilotlight-place-at", "x-pilotlight-following-ms"]
)
def test_only_schedulers_send_steps(redis: servers.RedisServer, tmp_path: Path, name: str) -> None:
    file, secret = tmp_path / "secret", make_secret()
    file.write_text(secret)
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        gateway = stack.enter_context(
            servers.gateway(
                tmp_path / "gateway", redis_url=redis.url, pool="steps", pod_secret_file=str(file)
            )
        )
        url = f"{gateway.url}/v2/models/m/infer"
        body: dict[str, list[object]] = {"inputs": []}
        for headers in ({name: "x"}, {name: "x", HEADER: make_secret()}):
            response = client.post(url, json=body, headers=headers)
            assert response.status_code == 400, response.text
            assert f"header {name} is for schedulers of workflows" in response.text
        response = client.post(url, json=body, headers={name: "x", HEADER: secret})
        assert response.status_code == 404, response.text  # no such model
