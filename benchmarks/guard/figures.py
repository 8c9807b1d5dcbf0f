"""The figures: what is measured in short bursts, and the yardstick of each.

Costs are CPU times of the process that does the work. The clock of this machine's cores changes
within seconds, which bursts in turns see alike.
"""

import ast
import asyncio
import contextlib
import copy
import gc
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import torch
import transformers
import uvloop

from benchmarks import decision, simulator
from benchmarks.formats.servers import OTHER_CORE, SERVER_CORE, start_pod
from benchmarks.guard.comparison import Measured
from benchmarks.pod_cpu import BODIES, answers
from benchmarks.proxy import serving_systems as proxies
from benchmarks.proxy.client import drive
from benchmarks.tiers.contestants import Contestant, Start, usual_ways
from benchmarks.tiers.models import folder_of
from benchmarks.tiers.ours import our_ways
from pilotlight.sample_models.make_model import make_model
from registry.domain.model import ModelName, ModelSpec, RoutingPolicy

PAIRS: Final = 12
CLIENTS: Final = 16
_GATEWAY_CLIENTS: Final = 64
"""What is done per request in progress is seen."""
_BURST_S: Final = 0.25
_LEAST_REQUESTS: Final = 100
_PROXY: Final = proxies.RAW
_LOADED: Final = "t5-small"
_SIMULATED: Final = 2_000
_PATTERN: Final = r"(?P<name>[a-z]+(?:-[a-z0-9]+)*)/(\d{1,3}|x[0-9a-f]+)(?=;|$)"
_SOURCE: Final = ast.parse(
    "def least(pods, key):\n    return min((p.wait, p.name) for p in pods if key in p)"
)


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    burst: Callable[[], float]
    """Measures for about `_BURST_S`; the cost of one operation."""
    yardstick: Callable[[], float]

    def measure(self) -> Measured:
        """Bursts in turns, each order as often; the first pair warms up."""
        ratios = []
        for number in range(PAIRS + 1):
            if number % 2:
                cost, unit = self.burst(), self.yardstick()
            else:
                unit, cost = self.yardstick(), self.burst()
            ratios.append(cost / unit)
        return Measured(tuple(ratios[1:]))


@contextlib.contextmanager
def figures() -> Iterator[list[Figure]]:
    """All figures; their servers run until the end of the block."""
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-guard-")))
        found = [*_decisions(), _simulator(), _gateway(stack, folder), *_pod(stack, folder)]
        found += _loads(stack)
        gc.collect()
        gc.freeze()  # else a collection, in some burst or other, goes through all of torch
        gc.set_threshold(50_000, 20, 20)  # as in the gateway
        yield found


def _decisions() -> Iterator[Figure]:
    for size in decision.SIZES[:2]:
        few, seed = replace(size, decisions=1_000), f"guard:{size.pods}"
        burst = partial(_decision_s, few, decision.build(size, random.Random(seed)), seed)
        yield Figure(f"decision of auto, {size.pods} pods", burst, interpreter_s)


def _decision_s(size: decision.ClusterSize, state: Any, seed: str) -> float:
    """With the changes of the state in between: single decisions are too short for the clock."""
    begun_s = time.thread_time()
    decision.decisions(size, state, RoutingPolicy.AUTO, random.Random(seed))
    return (time.thread_time() - begun_s) / size.decisions


def _simulator() -> Figure:
    size = simulator.SIZES[0]
    plan, trace = simulator.cluster(size), simulator.trace(size, _SIMULATED, 1)

    def request_s() -> float:
        cpu_s, _ = simulator.time_run(plan, trace, RoutingPolicy.AUTO, 1)
        gc.freeze()  # it has unfrozen all
        return cpu_s / _SIMULATED

    return Figure("request in the simulator", request_s, interpreter_s)


def interpreter_s() -> float:
    """CPU time of many functions of the standard library that are written in Python.

    Processors differ less in it, beside our code, than beside one loop: it has branches, attributes
    and short-lived objects of many kinds.
    """
    count, begun_s = 0, time.thread_time()
    while (spent_s := time.thread_time() - begun_s) < _BURST_S:
        re.purge()
        re.compile(_PATTERN)
        ast.unparse(copy.deepcopy(_SOURCE))
        count += 1
    return spent_s / count


def _gateway(stack: contextlib.ExitStack, folder: Path) -> Figure:
    systems = {each.name: each for each in proxies.serving_systems()}
    bursts = []
    for name in (proxies.PILOTLIGHT, _PROXY):
        (aside := folder / name.split()[0]).mkdir()
        setup = proxies.RoundSetup(
            proxies.CoreLayout.SHARED, {SERVER_CORE}, {OTHER_CORE}, OTHER_CORE, aside
        )
        ready = stack.enter_context(proxies.running(systems[name], setup))
        bursts.append(
            partial(
                _request_s,
                ready.process.process.pid,
                ready.url,
                proxies.TINY,
                clients=_GATEWAY_CLIENTS,
            )
        )
    return Figure("warm request in the gateway", bursts[0], bursts[1])


def _pod(stack: contextlib.ExitStack, folder: Path) -> list[Figure]:
    model = make_model("tiny-bert", folder / "tiny-bert")
    spec = ModelSpec(ModelName("default", "m"), model.as_uri())
    _, port, pod = start_pod(stack, folder / "pod", [spec])
    network = transformers.AutoModelForSequenceClassification.from_pretrained(model).eval()
    found = []
    for path, body in BODIES.items():
        url = f"http://127.0.0.1:{port}/{path}"
        pod.wait_until(partial(answers, url, body), timeout_s=600)
        burst, forward = (
            partial(_request_s, pod.process.pid, url, body),
            partial(_forward_s, network),
        )
        found.append(Figure(f"request in a pod, {path[:2].upper()}", burst, forward))
    return found


def _forward_s(network: Any) -> float:
    """CPU time of an inference of the pod's model, on the pod's core."""
    ids = torch.arange(12).reshape(1, -1)
    os.sched_setaffinity(0, {SERVER_CORE})
    count, begun_s = 0, time.process_time()
    with torch.inference_mode():
        while (spent_s := time.process_time() - begun_s) < _BURST_S:
            network(input_ids=ids)
            count += 1
    return spent_s / count


def _request_s(pid: int, url: str, body: bytes, *, clients: int = CLIENTS) -> float:
    """CPU time of a server per request of the clients, which run here, on the other core."""
    os.sched_setaffinity(0, {OTHER_CORE})
    spent_s, requests = -_cpu_s(pid), 0
    while requests < _LEAST_REQUESTS:  # a busy machine may serve none in a burst
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seen = orjson.loads(runner.run(drive(url, body, clients, _BURST_S)))
        if seen["errors"]:
            raise RuntimeError(f"{url}: {seen['errors']} errors in {seen['requests']} requests")
        requests += seen["requests"]
    return (spent_s + _cpu_s(pid)) / requests


def _cpu_s(pid: int) -> float:
    """Of all threads, in ns: `stat` counts in hundredths of a second."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found += int((thread / "schedstat").read_text().split()[0])
    return found / 1e9


def _loads(stack: contextlib.ExitStack) -> Iterator[Figure]:
    folder, skipped = folder_of(_LOADED), list[str]()
    ours = stack.enter_context(our_ways(folder, skipped))
    peer = next(each for each in usual_ways(folder) if each.name.startswith("safetensors"))
    for start in (Start.WARM, Start.HOST):
        way = next((each for each in ours if start in each.starts), None)
        if way is None:
            raise RuntimeError("; ".join(skipped))
        name = f"load from {start.partition(',')[0]}"
        yield Figure(name, partial(_load_s, way), partial(_load_s, peer))


def _load_s(way: Contestant) -> float:
    count, spent_s = 0, 0.0
    gc.collect()
    while spent_s < _BURST_S:
        begun_s = time.process_time()
        network = way.load()
        spent_s += time.process_time() - begun_s
        del network
        way.end()
        count += 1
    return spent_s / count
