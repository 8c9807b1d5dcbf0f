"""A browser that stays at the overview: memory of its page and of the gateway, by minute.

`python -m benchmarks.console.open_browser --seconds 3600`; needs Chromium and its driver. Meanwhile
clients send requests, and models come, become warm and go, so that the page has something to draw.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Final

import httpx

from benchmarks.machine import machine_facts, save
from registry.domain.model import ModelSpec
from tests import servers
from tests.chaos.processes import Process
from tests.gateway.console.browser import Browser, browser
from tests.gateway.gateway_harness import GatewayHarness, PodProcess

_REQUEST_INTERVAL_S: Final = 0.1
_CHANGE_REQUESTS: Final = 20
"""Requests between two changes of the models."""
_MODELS: Final = 20
_PODS: Final = ("pod-a", "pod-b", "pod-c", "pod-d")


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    heap_bytes: int
    """JavaScript objects of the page that are in use, after a collection."""
    nodes: int
    """Nodes of the document."""
    gateway_bytes: int
    """Anonymous memory of the gateway."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--interval", type=float, default=60.0)
    arguments = parser.parse_args()
    machine = machine_facts()
    print(f"{machine.line()}\n", flush=True)
    samples = measure(arguments.seconds, arguments.interval)
    print(summary(samples))
    save("console-browser", machine, vars(arguments), [asdict(each) for each in samples])


def measure(seconds: float, interval_s: float) -> list[Sample]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        redis = stack.enter_context(servers.redis_server(folder / "redis"))
        gateway = stack.enter_context(servers.gateway(folder, redis_url=redis.url, pool="open"))
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        harness = GatewayHarness(redis.url, "open", gateway, client, stack, ThreadPoolExecutor(1))
        ended = threading.Event()
        thread = threading.Thread(target=_load, args=(harness, ended))
        thread.start()
        stack.callback(thread.join)
        stack.callback(ended.set)
        window = stack.enter_context(browser())
        window.open(f"{gateway.url}/console")
        window.wait_for_text("pod-a")
        return _samples(window, gateway.process.pid, seconds, interval_s)


def _load(harness: GatewayHarness, ended: threading.Event) -> None:
    """Requests to warm models; now and then a model comes, and the oldest one goes."""
    models = [harness.declare(f"model-{number:02}") for number in range(_MODELS)]
    pods = harness.start_pods(*_PODS, slots=4, warm=tuple(models))
    for number in count():
        if ended.wait(_REQUEST_INTERVAL_S):
            return
        harness.predict(models[number % len(models)])
        if number % _CHANGE_REQUESTS == 0:
            _replace_oldest(harness, pods, models, number)


def _replace_oldest(
    harness: GatewayHarness, pods: PodProcess, models: list[ModelSpec], number: int
) -> None:
    gone, new = models.pop(0), harness.declare(f"later-{number:06}")
    harness.run(lambda registry: registry.delete_models([gone.name]))
    for pod in _PODS:
        pods.control(pod, "warm", new.key)
    models.append(new)


def _samples(window: Browser, pid: int, seconds: float, interval_s: float) -> list[Sample]:
    began_s, samples = time.monotonic(), []
    window.development_tools("Performance.enable")
    while True:
        window.development_tools("HeapProfiler.collectGarbage")
        figures = {
            each["name"]: int(each["value"])
            for each in window.development_tools("Performance.getMetrics")["metrics"]
        }
        samples.append(
            Sample(
                time.monotonic() - began_s, figures["JSHeapUsedSize"], figures["Nodes"],
                Process(pid, 0, "gateway", 0).memory_bytes(),
            )
        )  # fmt: skip
        print(samples[-1], flush=True)
        if time.monotonic() - began_s >= seconds:
            return samples
        time.sleep(interval_s)


def summary(samples: Sequence[Sample]) -> str:
    """A Markdown table of the beginning, the quarters and the end."""
    lines = ["| minute | page, MB | nodes | gateway, MB |", "|---|---|---|---|"]
    for part in range(5):
        each = samples[part * (len(samples) - 1) // 4]
        lines.append(
            f"| {each.at_s / 60:.0f} | {each.heap_bytes / 1e6:.2f} | {each.nodes:,}"
            f" | {each.gateway_bytes / 1e6:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
