"""Shares of tenants that always have requests, and of those that come and go."""

import pytest

from registry.domain.demand import HALF_LIFE_S, MAX_TENANTS, TenantUsage

TURN_S = 0.01


def serve(usage: TenantUsage, tenants: str, start_s: float, seconds: float) -> str:
    """The tenants served one after another, of those that always have requests."""
    served, now_s = "", start_s
    while now_s < start_s + seconds:
        tenant = min(tenants, key=lambda each: usage.rank(each, now_s))
        usage.add(tenant, TURN_S, now_s)
        served += tenant
        now_s += TURN_S
    return served


def test_tenants_that_always_have_requests_get_equal_shares() -> None:
    served = serve(TenantUsage(), "abc", 0.0, 3.0)
    counts = [served.count(each) for each in "abc"]
    assert max(counts) - min(counts) <= 1


def test_a_tenant_that_returns_is_ahead_for_about_a_half_life_only() -> None:
    usage = TenantUsage()
    serve(usage, "a", 0.0, 100 * HALF_LIFE_S)
    served = serve(usage, "ab", 100 * HALF_LIFE_S, 2 * HALF_LIFE_S)
    ahead = len(served) - len(served.lstrip("b"))
    assert 0.5 * HALF_LIFE_S < ahead * TURN_S < 1.5 * HALF_LIFE_S
    later = serve(usage, "ab", 102 * HALF_LIFE_S, 2 * HALF_LIFE_S)
    assert later.count("a") == pytest.approx(later.count("b"), abs=2)


def test_a_clock_that_is_set_back_makes_no_tenant_wait_longer() -> None:
    usage = TenantUsage()
    usage.add("a", 1.0, 1000.0)
    assert usage.rank("a", 0.0)[0] == pytest.approx(1.0)
    usage.add("a", 0.0, 0.0)
    assert usage.rank("a", HALF_LIFE_S)[0] == pytest.approx(0.5)


def test_the_tenants_served_longest_ago_are_forgotten() -> None:
    usage = TenantUsage()
    for number in range(MAX_TENANTS + 1):
        usage.add(str(number), 1.0, 0.0)
    assert usage.rank("0", 0.0) == (0.0, 0)
    assert usage.rank("1", 0.0) == (1.0, 2)
