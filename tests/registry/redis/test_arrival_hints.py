"""Announced arrivals: each owner replaces its own, and they end with their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from registry.domain.demand import ArrivalHint
from registry.redis.arrival_hints import MAX_HINTS, ArrivalHints
from tests.registry.redis.clients import SPEC

if TYPE_CHECKING:
    from registry.redis.client import Registry

pytestmark = pytest.mark.anyio

HINT = ArrivalHint(SPEC.name, 0.5, 1234.5, 2.0)


async def test_hints_of_all_owners_are_read_until_they_are_replaced(registry: Registry) -> None:
    hints = ArrivalHints(registry)
    assert await hints.read() == []
    await hints.put("one", [HINT], ttl_s=60)
    await hints.put("two", [HINT, HINT], ttl_s=60)
    assert await hints.read() == [HINT] * 3
    await hints.put("two", [], ttl_s=60)
    assert await hints.read() == [HINT]


async def test_hints_of_an_owner_that_is_gone_end_with_their_time(registry: Registry) -> None:
    hints = ArrivalHints(registry)
    await hints.put("gone", [HINT], ttl_s=0)
    await hints.put("here", [HINT], ttl_s=60)
    assert await hints.read() == [HINT]


async def test_the_largest_hints_count_where_there_are_too_many(registry: Registry) -> None:
    hints = ArrivalHints(registry)
    small = ArrivalHint(SPEC.name, 0.1, 1.0)
    await hints.put("one", [small] * MAX_HINTS + [HINT], ttl_s=60)
    found = await hints.read()
    assert len(found) == MAX_HINTS
    assert HINT in found


@pytest.mark.parametrize("text", ["{", "[[]]", '[["red/m", "likely", 1, 1]]', "[1]", '["rows"]'])
async def test_an_announcement_of_another_version_is_left_out(
    registry: Registry, text: str
) -> None:
    hints = ArrivalHints(registry)
    await registry.transactions.submit("put_hints", "odd", text, 60_000)
    await hints.put("here", [HINT], ttl_s=60)
    assert await hints.read() == [HINT]
