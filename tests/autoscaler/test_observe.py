"""What a tick reads of the registry."""

import asyncio
import json
import time

import pytest

from autoscaler.forecasting.counts import Counts, ObservedDemand
from autoscaler.observe import Observer
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch
from tests.autoscaler.conftest import Stage


async def test_no_counting_outlives_a_tick_that_failed(stage: Stage) -> None:
    """It would add the arrivals of an older tick beside the next one's."""
    transactions = stage.registry.transactions
    torn = json.dumps([int(time.time() * 1000), {"default/a": [1]}])
    await transactions.command("HSET", transactions.prefix + "waiting", "gateway", torn)
    arrivals = ObservedDemand(Counts(), time_scale=1.0)
    observer = Observer(ClusterWatch(stage.registry), AutoscalerLog(stage.registry), arrivals)
    with pytest.raises(ValueError, match="not enough values"):
        await observer.observe(time.time(), limits=None, paused=())
    await asyncio.sleep(0)  # the turn in which a cancelled task ends
    assert not [each for each in asyncio.all_tasks() if "DemandReader.read" in repr(each)]
