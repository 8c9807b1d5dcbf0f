"""A cluster whose parts can be killed: Redis, a gateway, two schedulers with runners, two pods."""

import os
import re
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import redis

from registry.domain.model import ModelName, ModelSpec
from tests import servers
from tests.registry.redis.clients import act
from tests.runtime.http import metric
from tests.workflows.kills.models import WIDTHS, expected_ends, make_models
from tests.workflows.service.harness import HEAD, Scheduler, running_scheduler

POOL: Final = "kills"
PODS: Final = ("pod-a", "pod-b")
SCHEDULERS: Final = ("scheduler", "other-scheduler")
"""The gateway knows the first one; both take over runs."""
VICTIMS: Final = (*PODS, "runner", *SCHEDULERS, "gateway", "redis")
TEXTS: Final = ("the cat sat down", "a long way home", "why is the sky blue?")
WORKFLOW: Final = """
@workflow(deadline="280s")
async def chain(text: str, number: int):
    topic = model("judge")(text)
    rows = {
        size: model(f"double-{size}")(row=model(f"widen-{size}")(number=[float(number)]))
        for size in ("narrow", "broad")
    }
    words = ""
    async for piece in model("writer")(text, max_tokens=8):
        words += piece
    ends = {size: model(f"ends-{size}")(row=row) for size, row in rows.items()}
    again = model("ends-broad")(row=model("double-broad")(row=rows["broad"]))
    result = {size: (await step)["ends"] for size, step in ends.items()}
    if number % 2:
        result["again"] = (await again)["ends"]
    return {**result, "label": (await topic)["label"], "words": words}
"""
_MEMORY_BYTES: Final = 1_900_000
"""Of a pod: not all models fit at once."""
_CACHE_BYTES: Final = 1 << 20
_LOST_PODS_PAUSE_S: Final = 5.0
"""No step is the cause of a pod's end here, also where two in turn are killed with it."""
_SHARED_MEMORY: Final = "memfd:pilotlight-tensor"
_POD_COUNTERS: Final = {
    "inputs from the same pod": ("pilotlight_kept_tensor_reads_total", {"tier": "same-pod"}),
    "by shared memory": ("pilotlight_kept_tensor_reads_total", {"tier": "shared-memory"}),
    "as raw bytes": ("pilotlight_kept_tensor_reads_total", {"tier": "raw-bytes"}),
    "loads": ("pilotlight_loads_total", {"outcome": "ok"}),
    "evictions": ("pilotlight_evictions_total", {"tier": "device"}),
}


class KillCluster:
    """Starts all parts; one that is killed is started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._redis = servers.RedisServer(
            folder / "redis", options=("--appendonly", "yes", "--appendfsync", "always")
        )
        self._ports = {name: servers.free_port() for name in ("gateway", *SCHEDULERS, *PODS)}
        self.client = self._stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        self._pod_contexts: dict[str, ExitStack] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, servers.Pod] = {}
        self.schedulers: dict[str, Scheduler] = {}
        self.gateway: servers.Gateway | None = None
        self.kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)
        self.pod_work: Counter[str] = Counter()
        """What pods had counted right before they were killed, and at the end."""

    def __enter__(self) -> Self:
        self._redis.start()
        self._stack.callback(self._redis.stop)
        self._forkserver = self._stack.enter_context(servers.forkserver(wait=False))
        specs = [
            ModelSpec(ModelName("default", name), folder.as_uri())
            for name, folder in make_models(self._folder / "models").items()
        ]
        act(self._redis.url, POOL, lambda registry: registry.put_models(specs))
        self._start_gateway()
        for name in SCHEDULERS:
            self._start_scheduler(name)
        self._forkserver.wait_event(ready=True)
        for name in PODS:
            self._pod_contexts[name] = self._stack.enter_context(ExitStack())
            self._start_pod(name)
        self._answers = {text: self._ask_directly(text) for text in TEXTS}
        response = self.client.put(f"{self.url}/v1/workflows/chain", content=HEAD + WORKFLOW)
        assert response.status_code == 200, response.text
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['gateway']}"

    def _ask_directly(self, text: str) -> dict[str, Any]:
        """What the models that read a text answer without a workflow."""
        judged = self.client.post(
            f"{self.url}/v2/models/judge/infer",
            json={"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]},
        ).json()
        written = self.client.post(
            f"{self.url}/openai/v1/completions",
            json={"model": "writer", "prompt": text, "max_tokens": 8, "temperature": 0},
        ).json()
        return {"label": judged["outputs"][0]["data"][0], "words": written["choices"][0]["text"]}

    def expected_result(self, text: str, number: int) -> dict[str, Any]:
        """What the workflow returns."""
        ends = {size: expected_ends(number, width) for size, width in WIDTHS.items()}
        if number % 2:
            ends["again"] = [2 * end for end in ends["broad"]]
        return {**ends, **self._answers[text]}

    def _start_gateway(self) -> None:
        self.gateway = self._stack.enter_context(
            servers.gateway(
                self._folder / "gateway",
                redis_url=self._redis.url,
                pool=POOL,
                port=self._ports["gateway"],
                workflows_url=f"http://127.0.0.1:{self._ports[SCHEDULERS[0]]}",
                program=(
                    "tests.with_constants",
                    f"gateway.dispatch.retries:PAUSE_S={_LOST_PODS_PAUSE_S}",
                    "gateway",
                ),
            )
        )

    def _start_scheduler(self, name: str) -> None:
        self.schedulers[name] = self._stack.enter_context(
            running_scheduler(
                self._folder / name, self._redis.url, POOL, self.url, port=self._ports[name]
            )
        )

    def _start_pod(self, name: str) -> None:
        self.pods[name] = self._pod_contexts[name].enter_context(
            servers.pod(
                self._forkserver,
                name=name,
                redis_url=self._redis.url,
                folder=self._folder / name,
                pool=POOL,
                port=self._ports[name],
                node="node",
                host_dir=str(self._host_folder),
                memory_bytes=_MEMORY_BYTES,
                generation_cache_bytes=_CACHE_BYTES,
                slots=2,
                lease_ttl=3.0,
            )
        )

    @property
    def _host_folder(self) -> Path:
        """Of both pods, as on one node: they share memory."""
        return self._folder / "host"

    # Kills

    def kill(self, victim: str) -> bool:
        """Kill a part and start it again; False: there is none now."""
        match victim:
            case "runner":
                pids = self.runners()
                if not pids:
                    return False
                os.kill(pids[0], signal.SIGKILL)
            case "gateway":
                assert self.gateway is not None
                self.gateway.process.kill()
                self.gateway.process.wait()
                self._start_gateway()
            case "redis":
                self._redis.stop()
                self._redis.start()
                servers.wait_until(self._has_loaded, what="Redis has read its file")
            case _ if victim in SCHEDULERS:
                self.schedulers[victim].kill()
                self._start_scheduler(victim)
            case _:
                self.note_work(victim)
                os.kill(self.pods[victim].pid, signal.SIGKILL)
                self._pod_contexts[victim].close()
                self._start_pod(victim)
        self.kills[victim] += 1
        return True

    def note_work(self, pod: str) -> None:
        """Add a pod's counters to `pod_work`."""
        for what, (name, labels) in _POD_COUNTERS.items():
            self.pod_work[what] += int(metric(self.pods[pod].url, name, **labels))

    def _has_loaded(self) -> bool:
        """A part that starts before that ends at once, as a pod's container would, to try again."""
        with redis.Redis.from_url(self._redis.url) as client, suppress(redis.ConnectionError):
            return bool(client.ping())
        return False

    def runners(self) -> list[int]:
        """Process ids of all runners that the schedulers have started and that live."""
        return [
            int(pid)
            for name in SCHEDULERS
            for pid in re.findall(
                r"runner started .*?pid=(\d+)", (self._folder / name / "scheduler.log").read_text()
            )
            if servers.is_alive(int(pid))
        ]

    # What must not be left

    def leaks(self) -> list[str]:
        """What is still held although no run is under way; empty: nothing."""
        found = [
            f"{name}: {value:g} runs under way"
            for name, scheduler in self.schedulers.items()
            if (value := metric(scheduler.url, "pilotlight_workflow_runs_active"))
        ]
        assert self.gateway is not None
        if reserved := metric(self.gateway.url, "pilotlight_gateway_reservations"):
            found.append(f"gateway: {reserved:g} reservations")
        found += [each for pod in self.pods.values() for each in _left_at(pod)]
        if len(sockets := list(self._host_folder.glob("*.socket"))) > len(PODS):
            found.append(f"{len(sockets)} sockets of {len(PODS)} pods")
        if len(self.runners()) > len(SCHEDULERS):
            found.append(f"{len(self.runners())} runners of one workflow")
        with redis.Redis.from_url(self._redis.url, decode_responses=True) as client:
            under_way = [
                key for key in client.scan_iter("*runs", _type="zset") if client.zcard(key)
            ]
        return found + [f"leases in {key}" for key in under_way]


def _left_at(pod: servers.Pod) -> list[str]:
    """What a pod still holds of requests and steps."""
    held = (
        "pilotlight_pod_slots_used",
        "pilotlight_pod_steps_queued",
        "pilotlight_device_waiting",
        "pilotlight_generations",
        "pilotlight_kept_tensor_bytes",
    )
    found = [f"{pod.name}: {name} {left:g}" for name in held if (left := metric(pod.url, name))]
    process = Path(f"/proc/{pod.pid}")
    files = [os.readlink(each) for each in (process / "fd").iterdir() if each.is_symlink()]
    shared = [*files, *(process / "maps").read_text().splitlines()]
    if count := sum(_SHARED_MEMORY in each for each in shared):
        found.append(f"{pod.name}: {count} descriptors and mappings of shared memory")
    return found
