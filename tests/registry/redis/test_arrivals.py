"""Arrivals of declared models, counted once per window; queue lengths, and announced arrivals."""

import dataclasses
import time

import pytest

from registry.domain.demand import ArrivalHint, CountWindow, QueueStats
from registry.domain.model import ModelName
from registry.redis.client import Registry
from registry.redis.reports import MAX_HINTS, ArrivalHints, ArrivalLog
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import SPEC, running, until
from tests.registry.redis.conftest import Connect

NAME = SPEC.name


async def _total(arrivals: ArrivalLog, span: CountWindow, name: ModelName = NAME) -> int:
    now_s = time.time()
    counted = await arrivals.read(span, now_s - 1200, now_s + 60)
    return sum(each.count for each in counted if each.model == name)


async def test_arrivals_are_counted_in_every_window(registry: Registry) -> None:
    await registry.put_models([SPEC])
    arrivals = ArrivalLog(registry)
    await arrivals.report("gateway", 1, [(NAME, 3, 0), (NAME, 2, 5)], {})
    assert [await _total(arrivals, span) for span in CountWindow] == [5, 5, 5]


async def test_earlier_arrivals_count_in_their_own_second(registry: Registry) -> None:
    await registry.put_models([SPEC])
    arrivals = ArrivalLog(registry)
    await arrivals.report("gateway", 1, [(NAME, 1, 0), (NAME, 2, 7)], {})
    now_s = time.time()
    first, second = await arrivals.read(CountWindow.SECOND, now_s - 60, now_s + 60)
    assert (first.count, second.count) == (2, 1)
    assert second.start_s - first.start_s == 7


async def test_a_repeated_report_counts_once(registry: Registry) -> None:
    await registry.put_models([SPEC])
    arrivals = ArrivalLog(registry)
    for sequence in (1, 1, 2):
        await arrivals.report("gateway", sequence, [(NAME, 1, 0)], {})
    await arrivals.report("another", 1, [(NAME, 1, 0)], {})
    assert await _total(arrivals, CountWindow.MINUTE) == 3


async def test_arrivals_of_unknown_models_are_not_counted(registry: Registry) -> None:
    await registry.put_models([SPEC])
    arrivals = ArrivalLog(registry)
    await arrivals.report("gateway", 1, [(ModelName("default", "unknown"), 9, 0), (NAME, 1, 0)], {})
    assert await _total(arrivals, CountWindow.MINUTE, ModelName("default", "unknown")) == 0
    assert await _total(arrivals, CountWindow.MINUTE) == 1


async def test_a_long_reply_is_read_in_parts(registry: Registry) -> None:
    specs = [
        dataclasses.replace(SPEC, name=ModelName("default", f"m-{index}")) for index in range(700)
    ]
    await registry.put_models(specs)
    arrivals = ArrivalLog(registry)
    for ago_s in range(10):
        await arrivals.report("gateway", ago_s + 1, [(spec.name, 1, ago_s) for spec in specs], {})
    now_s = time.time()
    counted = await arrivals.read(CountWindow.SECOND, now_s - 60, now_s + 60)
    assert sum(each.count for each in counted) == 7000
    assert {each.model for each in counted} == {spec.name for spec in specs}


async def test_queue_lengths_of_all_gateways_add_up(registry: Registry, connect: Connect) -> None:
    one, other = ArrivalLog(registry), ArrivalLog(await connect())
    await one.report("one", 1, [], {NAME: QueueStats(2, 1, 100.5)})
    await other.report("other", 1, [], {NAME: QueueStats(3, 0, 50.25)})
    assert await one.queue_stats() == {NAME: QueueStats(5, 1, 50.25)}
    await other.report("other", 2, [], {})
    assert await one.queue_stats() == {NAME: QueueStats(2, 1, 100.5)}


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


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[[]]",
        '[["red/m", "likely", 1, 1]]',
        "[1]",
        '["rows"]',
        '[["red/m", 1.5, 1, 1]]',
        '[["red/m", 0.5, 1, 0]]',
    ],
)
async def test_an_announcement_of_another_version_is_left_out(
    registry: Registry, text: str
) -> None:
    hints = ArrivalHints(registry)
    await registry.transactions.submit("put_hints", "odd", text, 60_000)
    await hints.put("here", [HINT], ttl_s=60)
    assert await hints.read() == [HINT]


async def test_the_first_queued_request_of_all_gateways_is_published(
    registry: Registry, connect: Connect
) -> None:
    import redis

    arrivals, waits = ArrivalLog(registry), {NAME: QueueStats(1, 0, 0.0)}
    async with (
        running(ClusterWatch(await connect())) as watch,
        running(ClusterWatch(await connect(), counts=False)) as pods,
    ):
        await arrivals.report("one", 1, [], waits)
        await until(lambda: watch.state.has_queue, what="there is a queue")
        version = watch.state.version
        await arrivals.report("two", 1, [], waits)
        await arrivals.report("one", 2, [], {})
        assert watch.state.has_queue
        await arrivals.report("two", 2, [], {})
        await until(lambda: not watch.state.has_queue, what="there is none")
        assert watch.state.version == version + 1  # in between nothing was published
        assert not pods.state.has_queue
        await arrivals.report("dead", 1, [], waits)
        await until(lambda: watch.state.has_queue, what="there is a queue")
        with redis.Redis.from_url(registry.url) as direct:
            waiting = f"pilotlight:{{{registry.pool}}}:waiting"
            direct.hset(waiting, "dead", '[0,{"a/b":[1,0,0]}]')
        assert not await arrivals.queue_stats()
        await until(lambda: not watch.state.has_queue, what="that of a dead gateway is gone")
