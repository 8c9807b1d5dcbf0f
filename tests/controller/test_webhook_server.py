from collections.abc import AsyncIterator

import httpx
import pytest

from controller.admission import validate
from controller.webhook_server import MUTATE_PATH, VALIDATE_PATH, admission_app
from tests.controller.objects import service


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=admission_app(validate))
    async with httpx.AsyncClient(
        transport=transport, base_url="https://webhook", timeout=60
    ) as made:
        yield made


async def test_serves_reviews(client: httpx.AsyncClient) -> None:
    review = {"request": {"uid": "r-1", "namespace": "team", "object": service()}}
    for path in (VALIDATE_PATH, MUTATE_PATH):
        answer = await client.post(path, json=review)
        assert answer.status_code == 200
        assert answer.json()["response"] == {"uid": "r-1", "allowed": True}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="empty"),
        pytest.param(b"[1]", 400, id="no-object"),
        pytest.param(b"{}", 400, id="no-request"),
        pytest.param(b'{"request": 3}', 400, id="request-is-a-number"),
        pytest.param(b'{"request": {"uid": "r", "object": {"metadata": 3}}}', 400, id="metadata"),
        pytest.param(
            b'{"request": {"uid": "r", "object": {"apiVersion": "serving.kserve.io/v1beta1",'
            b' "kind": "InferenceService",'
            b' "metadata": {"annotations": {"pilotlight.io/pool": "p"}, "name": '
            + b"[" * 1000
            + b"]" * 1000
            + b'}, "spec": {"predictor": {"model": {"modelFormat": {"name": "x"}}}}}}}',
            400,
            id="nested-too-deeply",
        ),
        pytest.param(b" " * (9 << 20), 413, id="too-long"),
    ],
)
async def test_rejects_bodies_that_are_not_reviews(
    client: httpx.AsyncClient, body: bytes, status: int
) -> None:
    answer = await client.post(VALIDATE_PATH, content=body)
    assert answer.status_code == status
    assert answer.json()["error"]
