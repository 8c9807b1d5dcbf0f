"""The external metrics API: figures of all pools, what is refused, whose certificate may ask."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.certificates import make_certificates, make_context
from common.http_server import HttpServer
from controller.external_metrics import VERSION, ExternalMetrics, _protocol, allowed_names
from controller.objects import ClusterObjects
from controller.pools import PoolRegistries
from controller.resources import read_service
from registry.domain.demand import ExpectedRates
from registry.domain.pool_demand import REQUESTS_PER_S, WANTED_PODS, PoolAdvice
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from tests import servers
from tests.controller.objects import service
from tests.kubernetes.certificates import Authority
from tests.registry.redis.clients import SPEC, until

POOL = "metrics-pool"


@dataclass
class Stage:
    client: httpx.AsyncClient
    log: AutoscalerLog
    registry: Registry

    async def ask(
        self, selector: str, metric: str, namespace: str = "pilotlight"
    ) -> httpx.Response:
        path = f"/apis/{VERSION}/namespaces/{namespace}/{metric}"
        return await self.client.get(path, params={"labelSelector": selector})

    async def publish(self) -> None:
        token = await self.log.acquire_lead("me", ttl_s=60)
        assert token is not None
        now_s = (await self.log.records()).read_at_s
        await self.log.advise(token, PoolAdvice(3, "pilotlight", now_s))
        await self.log.publish_expected_rates(token, ExpectedRates({SPEC.key: 2.5}, now_s))


@pytest.fixture
async def stage(redis: servers.RedisServer) -> AsyncIterator[Stage]:
    registry = await Registry.connect(redis.url, POOL)
    await registry.put_models([SPEC])
    objects = ClusterObjects()
    labels = {"pilotlight.io/pool": POOL}
    document = service(name="pool", namespace="pilotlight", annotations={}, labels=labels)
    objects.update(read_service(document))
    assert objects.pools() == {POOL}
    async with asyncio.TaskGroup() as tasks:
        registries = PoolRegistries(redis.url, tasks, lambda: None)
        await registries.get(POOL).watch.wait_synced()
        transport = httpx.ASGITransport(app=ExternalMetrics(objects, registries).app())
        async with httpx.AsyncClient(transport=transport, base_url="https://metrics") as client:
            yield Stage(client, AutoscalerLog(registry), registry)
        await registries.close()
    await registry.close()


async def test_figures_of_pools_and_components(stage: Stage) -> None:
    early = await stage.ask(f"pool={POOL}", WANTED_PODS)
    assert early.status_code == 503
    assert early.json()["kind"] == "Status"
    await stage.publish()
    found = (await stage.ask(f"pool={POOL}", WANTED_PODS)).json()
    assert found["apiVersion"] == VERSION
    assert found["items"][0].items() >= {"metricName": WANTED_PODS, "value": "3000m"}.items()
    namespace, name = SPEC.name
    answer = await stage.ask(f"deployment={name}-transformer", REQUESTS_PER_S, namespace)
    assert answer.json()["items"][0]["value"] == "2500m"


@pytest.mark.parametrize(
    ("selector", "metric", "namespace", "text"),
    [
        ("pool=gpu", WANTED_PODS, "pilotlight", f"pool must be one of: {POOL}; was 'gpu'"),
        (f"pool={POOL}", WANTED_PODS, "team", "is in namespace 'pilotlight'"),
        (f"pool={POOL}", "cpu", "pilotlight", f"metric must be {WANTED_PODS}, was 'cpu'"),
        ("", WANTED_PODS, "pilotlight", "matchLabels must be pool: NAME"),
        ("pool in (a,b)", WANTED_PODS, "pilotlight", "matchLabels must be pool: NAME"),
        ("deployment=web", REQUESTS_PER_S, "pilotlight", "NAME-transformer"),
    ],
)
async def test_what_is_unknown_is_not_found(
    stage: Stage, selector: str, metric: str, namespace: str, text: str
) -> None:
    await stage.publish()
    answer = await stage.ask(selector, metric, namespace)
    assert answer.status_code == 404
    assert text in answer.json()["message"]


@pytest.mark.parametrize(
    ("text", "names"),
    [(None, set()), ("", set()), ("null", set()), ("[]", set()), ('["front"]', {"front"})],
)
def test_no_allowed_names_are_any(text: str | None, names: set[str]) -> None:
    data = {} if text is None else {"requestheader-allowed-names": text}
    assert allowed_names(data) == names


@asynccontextmanager
async def served(names: frozenset[str], context: ssl.SSLContext) -> AsyncIterator[str]:
    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    port = servers.free_port()
    server = HttpServer(app, host="127.0.0.1", port=port, tls=context, http=_protocol(names))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started, what="it listens")
    yield f"https://127.0.0.1:{port}"
    server.stop()
    await task


async def test_only_the_named_certificate_may_ask(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = Authority(tmp_path)
    pair = authority.user("front-proxy-client")
    context = make_context(make_certificates(["localhost"], now))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.certificate)
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.load_cert_chain(pair.certificate, pair.key)

    async def ask(url: str) -> int:
        async with httpx.AsyncClient(verify=client, trust_env=False) as http:
            return (await http.get(url)).status_code

    for names in (frozenset[str](), frozenset({"front-proxy-client"})):
        async with served(names, context) as url:
            assert await ask(url) == 200
    async with served(frozenset({"another"}), context) as url:
        with pytest.raises(httpx.TransportError):
            await ask(url)
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    async with served(frozenset(), context) as url:
        with pytest.raises(httpx.TransportError):
            await ask(url)  # without a certificate
