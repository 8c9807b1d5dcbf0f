"""Tenants come, change and go: what the registry has then, also after faults of both sides."""

import asyncio

import pytest

from controller.resources import read_tenant
from registry.domain.model import ModelName
from registry.domain.tenant_rules import Quota, merged, parse_rules
from registry.redis.client import Registry
from tests.controller import test_controller
from tests.controller.objects import pool_tenant
from tests.controller.test_controller import NAME, Replica, Stage, replica
from tests.registry.redis.clients import until

stage = test_controller.stage
GRANT = {"storage_prefixes": "s3://models/\npvc://claim/a", "quotas": "memory:2Gi\npinned:1"}


def message(of: Stage) -> str:
    conditions = of.status().get("conditions") or []
    return next((each["message"] for each in conditions if each["type"] == "Ready"), "")


async def test_tenants_come_change_and_go(stage: Stage) -> None:
    stage.server.delete("configmaps/pilotlight/everyone")
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(
            lambda: "does not admit namespace 'team'" in message(stage), what="nobody is admitted"
        )
        await until(lambda: stage.state(one).rules == merged([]), what="the registry has rules")
        for name in ("team", "b", "c"):
            stage.server.put(pool_tenant(stage.pool, name, **GRANT))
        await until(stage.is_ready, what="its model is served")
        rules = stage.state(one).rules
        assert rules is not None
        assert rules.namespaces == {"team", "b", "c"}
        assert rules.prefixes_of("b") == ("s3://models/", "pvc://claim/a")
        assert rules.quota("c", Quota.MEMORY) == 2 << 30
        stage.server.put(pool_tenant(stage.pool, "b", storage_prefixes="s3://b/"))
        await until(lambda: _prefixes(stage, one, "b") == ("s3://b/",), what="one has changed")
        stage.server.delete("configmaps/pilotlight/team")
        await until(lambda: NAME not in stage.state(one).models, what="its model is withdrawn")
        assert stage.state(one).rules is not None
        await until(lambda: "does not admit" in message(stage), what="the status says why")


def _prefixes(stage: Stage, one: Replica, namespace: str) -> tuple[str, ...]:
    rules = stage.state(one).rules
    return () if rules is None else rules.prefixes_of(namespace)


def test_a_tenants_object_grants_nothing_to_others() -> None:
    for data in ({"storage_prefixes": "s3://a; *=*"}, {"quotas": "pinned:1;b=pinned:0"}):
        found = read_tenant(pool_tenant("p", "a", **data))
        assert found.rules == merged([])
        assert "no other" in found.problems[0]


async def test_mistakes_grant_nothing_and_are_said(stage: Stage) -> None:
    bad = pool_tenant(stage.pool, "team", storage_prefixes="models", quotas="gold:1", prefix="x")
    stage.server.put(bad)
    async with replica(stage.url, stage.redis_url) as one:
        await until(lambda: "InvalidTenant" in stage.server.events, what="an event is posted")
        await until(lambda: stage.state(one).rules is not None, what="the rules are written")
        rules = stage.state(one).rules
        assert rules is not None
        assert rules.namespaces == {"*"}  # of `everyone`
        assert rules.prefixes_of("team") == ("s3://",)
        [found] = [each for each in one.objects.tenants.values() if each.name.name == "team"]
        assert [part in " ".join(found.problems) for part in ("data.prefix", "models", "gold:1")]


async def test_a_tenant_of_another_namespace_grants_nothing(stage: Stage) -> None:
    foreign = pool_tenant(stage.pool, "team", storage_prefixes="*")
    foreign["metadata"]["namespace"] = "team"
    stage.server.put(foreign)
    async with replica(stage.url, stage.redis_url) as one:
        await until(lambda: stage.state(one).rules is not None, what="the rules are written")
        assert ModelName("team", "team") in one.objects.tenants
        assert _prefixes(stage, one, "team") == ("s3://",)


@pytest.mark.slow
async def test_a_registry_without_data_gets_rules_before_models(stage: Stage) -> None:
    stage.server.put(stage.model())
    async with replica(stage.url, stage.redis_url) as one:
        await until(stage.is_ready, what="the model is ready")
        registry = await Registry.connect(stage.redis_url, stage.pool)
        seen: list[tuple[bool, bool]] = []
        stage_state = stage.state(one)
        one.registries.get(stage.pool).watch.subscribe(
            lambda: seen.append((stage_state.rules is not None, NAME in stage_state.models))
        )
        keys = await registry.transactions.command("KEYS", registry.transactions.prefix + "*")
        await registry.transactions.command("DEL", *keys)
        await until(lambda: (False, False) in seen, what="the loss is noticed")
        await until(lambda: seen[-1] == (True, True), what="all is written again")
        assert (False, True) not in seen[seen.index((False, False)) :]
        await registry.close()


async def test_a_newer_leaders_rules_stay(stage: Stage) -> None:
    newer = await Registry.connect(stage.redis_url, stage.pool)
    rules = parse_rules(namespaces="others")
    assert await newer.put_rules(rules, 7)
    async with replica(stage.url, stage.redis_url, token=6) as one:
        await until(lambda: stage.state(one).rules == rules, what="it has read them")
        for _ in range(3):
            stage.server.put(pool_tenant(stage.pool, storage_prefixes="s3://"))
            await asyncio.sleep(0)
        await until(lambda: len(one.objects.tenants) == 1, what="it has tenants of its own")
        assert (await newer.cluster()).rules == rules
    await newer.close()
