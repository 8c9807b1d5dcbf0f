"""Rules for tenants in the registry: who may write them, and what copies have of them."""

from registry.domain.tenant_rules import Quota, TenantRules, parse_rules
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import running, until
from tests.registry.redis.conftest import Connect

FIRST = parse_rules(namespaces="a", prefixes="a=s3://a/", quotas="a=memory:1Gi pinned:2")
SECOND = parse_rules(namespaces="a, b")


async def test_copies_follow_the_rules(registry: Registry, connect: Connect) -> None:
    async with running(ClusterWatch(await connect())) as early:
        assert early.state.rules is None
        assert await registry.put_rules(FIRST)
        await until(lambda: early.state.rules == FIRST, what="the change is pushed")
        assert early.state.rules is not None
        assert early.state.rules.quota("a", Quota.MEMORY) == 1 << 30
    async with running(ClusterWatch(await connect())) as late:
        assert late.state.rules == FIRST
    assert (await registry.cluster()).rules == FIRST


async def test_a_controller_that_leads_no_more_cannot_overwrite(registry: Registry) -> None:
    assert await registry.put_rules(FIRST, 10)
    assert await registry.put_rules(SECOND, 11)
    assert not await registry.put_rules(FIRST, 10)
    assert not await registry.put_rules(TenantRules())
    assert (await registry.cluster()).rules == SECOND
    assert await registry.put_rules(SECOND, 12)  # unchanged, yet the token counts
    assert not await registry.put_rules(FIRST, 11)


async def test_the_fence_of_a_cluster_that_was_restored_ends(registry: Registry) -> None:
    """Its versions begin again with lower numbers."""
    await registry.put_rules(SECOND, 1 << 50)
    key = registry.transactions.prefix + "tenants_fence"
    left_ms = await registry.transactions.command("PTTL", key)
    assert 50_000 < left_ms <= 60_000
    await registry.transactions.command("PEXPIRE", key, "0")
    assert await registry.put_rules(FIRST, 3)
