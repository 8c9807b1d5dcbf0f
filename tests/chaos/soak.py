"""`python -m tests.chaos.soak`: a platform under load while models come and go.

Samples memory and descriptors of every process and the keys of Redis; each must be flat: no series
may grow, beyond doubt, by more than a tenth of its mean per hour. Left out is the time until as
much is forgotten as is learned: measurements outlive their model by ten minutes, and the gateway
keeps its latest 4,096 decisions. Keys that expire by themselves must only do so.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from registry.domain.model import ModelName, ModelSpec
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from tests.chaos.load import Load
from tests.chaos.models import BUCKET, model_name
from tests.chaos.platform import PlatformUnderTest
from tests.chaos.trend import trend

_SAMPLE_S: Final = 5.0
WARMING_S: Final = 780.0
_LEAST_S: Final = WARMING_S + 300.0
_GROWTH: Final = 0.1
_FLOORS: Final = {"MB": 8.0, "descriptors": 8.0, "keys": 20.0}
"""Growth per hour that is noise: memory comes in arenas, connections in pools."""
_UNBOUND: Final = ("object store", "Redis, ")
"""Not asserted: another project's server, and keys that expire by themselves."""
_PREFIX: Final = "pilotlight:{default}:"
_EXPIRING: Final = ("arrivals:", "idle:", "told:")
"""Keys with a time to live by design; each kind must have one."""


class Churn:
    """Declares a new model every `period_s`, asks for it, and deletes it five models later."""

    def __init__(self, platform: PlatformUnderTest, load: Load, period_s: float) -> None:
        self._platform, self._load, self._period_s = platform, load, period_s
        self.declared = 0

    async def run(self) -> None:
        registry = await Registry.connect(self._platform.redis.url)
        try:
            while True:
                with suppress(RegistryUnavailable):
                    await self._replace(registry)
                await asyncio.sleep(self._period_s)
        finally:
            await registry.close()

    async def _replace(self, registry: Registry) -> None:
        number = self._platform.models + self.declared
        uri = f"s3://{BUCKET}/{model_name(self.declared % self._platform.models)}"
        name = ModelName("default", model_name(number))
        await registry.put_models([ModelSpec(name, uri)])
        await self._load.probe(number)
        self.declared += 1
        if self.declared > 5:
            await registry.delete_models([ModelName("default", model_name(number - 5))])


def sample(platform: PlatformUnderTest) -> dict[str, float]:
    """One value per series: memory and descriptors by role, keys of Redis.

    What pods have inherited from the forkserver counts once, as the forkserver's.
    """
    found: dict[str, float] = defaultdict(float)
    processes = platform.processes()
    inherited = sum(each.memory_bytes() for each in processes if each.role == "forkserver")
    for each in processes:
        if each.role != "other":
            own = each.memory_bytes() - (inherited if each.role == "pod" else 0)
            found[f"{each.role}: MB"] += own / 1e6
            found[f"{each.role}: descriptors"] += each.descriptors()
    with platform.redis.connect() as client:
        for key in client.scan_iter(f"{_PREFIX}*", count=1000):
            rest = str(key).removeprefix(_PREFIX)
            kind = next((each for each in _EXPIRING if rest.startswith(each)), "")
            found[f"Redis, {kind} keys" if kind else "Redis: keys"] += 1
            if kind and client.ttl(key) == -1:
                found[f"Redis, {kind} without a time to live: keys"] += 1
        found["Redis: MB"] = client.info("memory")["used_memory"] / 1e6
    return found


async def soak(platform: PlatformUnderTest, seconds: float, seed: int) -> dict[str, list[float]]:
    """Samples by series, with their times as `time`."""
    load = Load(platform.port, platform.models, random.Random(seed), 20.0)
    churn = Churn(platform, load, 2.0)
    tasks = [asyncio.create_task(load.run()), asyncio.create_task(churn.run())]
    series: dict[str, list[float]] = defaultdict(list)
    began_s = time.monotonic()
    while time.monotonic() < began_s + seconds:
        await asyncio.sleep(_SAMPLE_S)
        now_s = time.monotonic() - began_s
        found = await asyncio.to_thread(sample, platform)
        if now_s > WARMING_S:
            series["time"].append(now_s)
            for name, value in found.items():
                missing = len(series["time"]) - 1 - len(series[name])
                series[name] += [0.0] * missing + [value]
        load.requests.clear()
    for task in tasks:
        task.cancel()
    print(f"{churn.declared} models came, and all but 5 went again", flush=True)  # noqa: T201
    return series


def report(series: Mapping[str, list[float]]) -> list[str]:
    """Prints each series; returns those that grow."""
    growing = []
    print("| series | mean | per hour | 95 % confidence |\n|---|---|---|---|")  # noqa: T201
    for name, values in sorted(series.items()):
        if name == "time" or len(values) != len(series["time"]):
            continue
        found = trend(series["time"], values)
        print(f"| {name} | {found} |")  # noqa: T201
        role, _, unit = name.rpartition(": ")
        if (
            not role.startswith(_UNBOUND)
            and unit in _FLOORS
            and found.grows(_GROWTH, _FLOORS[unit])
        ):
            growing.append(f"{name} grows: {found}")
        if "without a time to live" in name:
            growing.append(f"{name}: {found.mean:g}")
    return growing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.seconds < _LEAST_S:
        parser.error(
            f"--seconds must be {_LEAST_S:g} or more, was {options.seconds:g}: nothing is"
            f" judged in the first {WARMING_S:g} s"
        )
    folder = Path(tempfile.mkdtemp(prefix="pilotlight-soak-"))
    platform = PlatformUnderTest(folder, pods=3, models=6)
    try:
        platform.start()
        series = asyncio.run(soak(platform, options.seconds, options.seed))
    finally:
        platform.stop()
        shutil.rmtree(folder)
    growing = report(series)
    for each in growing:
        print(f"VIOLATION {each}")  # noqa: T201
    return 1 if growing else 0


if __name__ == "__main__":
    sys.exit(main())
