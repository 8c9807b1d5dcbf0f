"""Grants that end while a pod runs: its downloads, warm models and cached files, by real pods."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from registry.domain.model import ModelName, ModelSpec
from registry.domain.tenant_rules import TenantRules, parse_rules
from registry.redis.client import Registry
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import post

pytestmark = pytest.mark.slow

ENDS_WITHIN_S = 5.0
SLOW = 4_000
"""Bytes per second: a tiny model takes a minute."""


def predict(pod: servers.Pod, model: str) -> httpx.Response:
    return post(f"{pod.url}/v1/models/{model}:predict", {"instances": ["a fine day"]})


def declare(cluster: Cluster, folder: Path, *names: str) -> list[ModelSpec]:
    specs = [ModelSpec(ModelName.parse(name), folder.as_uri()) for name in names]
    cluster.do(lambda registry: registry.put_models(specs))
    return specs


def grant(cluster: Cluster, rules: TenantRules) -> None:
    assert cluster.do(lambda registry: registry.put_rules(rules))


def is_loading(cluster: Cluster, spec: ModelSpec, pod: str) -> bool:
    async def look(registry: Registry) -> bool:
        found = (await registry.cluster()).holders(spec.key).get(pod)
        return found is not None and found.is_warming

    return cluster.do(look)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < seconds


def refusal(pod: servers.Pod, model: str, reason: str) -> None:
    def is_refused() -> bool:
        answer = predict(pod, model)
        return answer.status_code == 503 and reason in answer.text

    servers.wait_until(is_refused, what=f"{model} is refused: {reason}")


def test_an_old_grant_ends_within_five_seconds(cluster: Cluster, models: Path) -> None:
    prefix = models.as_uri()
    both = parse_rules(namespaces="one, two", prefixes=f"one={prefix}; two={prefix}")
    grant(cluster, both)
    warm, other = declare(cluster, models / "tiny-bert", "one/warm", "two/warm")
    [late] = declare(cluster, models / "tiny-vit", "one/late")
    pod = cluster.pod("fast", has_tenants=True)
    slow = cluster.pod("slow", has_tenants=True, link_rate=SLOW)
    for name in ("one~warm", "two~warm"):
        assert predict(pod, name).status_code == 200
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(predict, slow, "one~late")
        servers.wait_until(lambda: is_loading(cluster, late, "slow"), what="it is downloaded")
        with within(ENDS_WITHIN_S):
            grant(cluster, parse_rules(namespaces="one, two", prefixes=f"two={prefix}"))
            answer = waiting.result(timeout=ENDS_WITHIN_S)
            assert answer.status_code == 503
            assert "may not read file://" in answer.text
            refusal(pod, "one~warm", "may not read file://")
            servers.wait_until(
                lambda: cluster.tiers(warm).get("fast") != "device", what="its memory is free"
            )
    assert predict(pod, "two~warm").headers["x-pilotlight-start"] == "warm"
    assert cluster.tiers(other)["fast"] == "device"
    with within(ENDS_WITHIN_S):
        grant(cluster, parse_rules(namespaces="two", prefixes=f"*={prefix}"))
        refusal(pod, "one~warm", "does not admit namespace 'one'")
    grant(cluster, both)
    servers.wait_until(lambda: predict(pod, "one~warm").status_code == 200, what="granted again")


def test_a_model_in_use_without_end_is_refused_as_well(cluster: Cluster, models: Path) -> None:
    grant(cluster, parse_rules(prefixes="*=*"))
    declare(cluster, models / "tiny-bert", "one/busy")
    pod = cluster.pod(has_tenants=True)
    assert predict(pod, "one~busy").status_code == 200
    with ThreadPoolExecutor(4) as clients:
        is_over = False

        def call() -> list[int]:
            statuses = []
            while not is_over:
                statuses.append(predict(pod, "one~busy").status_code)
            return statuses

        calls = [clients.submit(call) for _ in range(4)]
        try:
            grant(cluster, parse_rules())
            refusal(pod, "one~busy", "may not read file://")
        finally:
            is_over = True
        assert {status for each in calls for status in each.result()} <= {200, 503}


@pytest.mark.parametrize("has_tenants", [True, False])
def test_a_pod_that_has_seen_no_rules(cluster: Cluster, models: Path, *, has_tenants: bool) -> None:
    """With tenants it serves nothing; a machine's owner needs none."""
    declare(cluster, models / "tiny-bert", "one/m")
    pod = cluster.pod(has_tenants=has_tenants)
    if has_tenants:
        refusal(pod, "one~m", "not in the registry yet")
        grant(cluster, parse_rules(prefixes="*=*"))
    servers.wait_until(lambda: predict(pod, "one~m").status_code == 200, what="it is served")


def test_a_pod_takes_requests_once_its_copy_of_the_rules_is_complete(cluster: Cluster) -> None:
    def command(*words: str) -> bytes:
        return bytes(cluster.do(lambda registry: registry.transactions.command(*words)))

    def refused(_: servers.Pod) -> bool:
        calls = re.search(rb"cmdstat_subscribe:.*rejected_calls=(\d+)", command("INFO", "all"))
        return calls is not None and int(calls[1]) >= 3

    command("CONFIG", "RESETSTAT")
    command("ACL", "SETUSER", "default", "-subscribe")
    try:
        pod = cluster.pod(until=refused)
        assert not pod.is_ready()
    finally:
        command("ACL", "SETUSER", "default", "+subscribe")
    servers.wait_until(pod.is_ready, what="it is registered")


def test_rules_hold_while_the_registry_has_none(cluster: Cluster, models: Path) -> None:
    grant(cluster, parse_rules(prefixes="*=*"))
    [spec] = declare(cluster, models / "tiny-bert", "one/m")
    pod = cluster.pod(has_tenants=True)
    assert predict(pod, "one~m").status_code == 200

    async def lose(registry: Registry) -> None:
        keys = await registry.transactions.command("KEYS", registry.transactions.prefix + "*")
        await registry.transactions.command("DEL", *keys)
        await registry.put_models([spec])

    cluster.do(lose)
    for _ in range(20):
        assert predict(pod, "one~m").status_code == 200
    servers.wait_until(lambda: "pod-a" in cluster.tiers(spec), what="it is registered again")
    assert predict(pod, "one~m").status_code == 200
