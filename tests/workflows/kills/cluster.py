"""A cluster whose parts can be killed: Redis, a gateway, two schedulers with runners, two pods."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, Self

import httpx
import redis

from registry.domain.model import ModelName, ModelSpec
from tests import servers
from tests.gateway.gateway_harness import running_pods
from tests.registry.redis.clients import act
from tests.workflows.service.harness import HEAD, running_scheduler

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from tests.gateway.gateway_harness import PodProcess
    from tests.workflows.service.harness import Scheduler

POOL: Final = "kills"
PODS: Final = ("pod-a", "pod-b")
SCHEDULERS: Final = ("scheduler", "other-scheduler")
"""The gateway knows the first one; both take over runs."""
VICTIMS: Final = (*PODS, "runner", *SCHEDULERS, "gateway", "redis")
MODELS: Final = ("embed", "judge", "writer")
WORKFLOW: Final = """
@workflow(deadline="280s")
async def chain(text: str, number: int):
    topic = model("judge")(features=model("embed")(features=[number])["features"])
    first = await model("writer")(text)
    texts = [model("writer")(first["text"] + str(each)) for each in range(2)]
    if (await topic)["features"][0] % 2:
        texts.append(model("writer")(first["text"] + "odd"))
    return [(await each)["text"] for each in texts]
"""


def expected_result(text: str, number: int) -> list[str]:
    """What the workflow returns: the pods return what they are sent."""
    return [f"{text}0", f"{text}1", *([f"{text}odd"] if number % 2 else [])]


class KillCluster:
    """Starts all parts; one that is killed is started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._redis = servers.RedisServer(
            folder / "redis", options=("--appendonly", "yes", "--appendfsync", "always")
        )
        self._ports = {name: servers.free_port() for name in ("gateway", *SCHEDULERS)}
        self.client = self._stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        self.pods: dict[str, PodProcess] = {}
        self.schedulers: dict[str, Scheduler] = {}
        self.gateway: servers.Gateway | None = None
        self.kills: dict[str, int] = dict.fromkeys(VICTIMS, 0)

    def __enter__(self) -> Self:
        self._redis.start()
        self._stack.callback(self._redis.stop)
        specs = [ModelSpec(ModelName("default", name), f"s3://models/{name}") for name in MODELS]
        act(self._redis.url, POOL, lambda registry: registry.put_models(specs))
        self._start_gateway()
        for name in SCHEDULERS:
            self._start_scheduler(name)
        for name in PODS:
            self._start_pod(name)
        response = self.client.put(f"{self.url}/v1/workflows/chain", content=HEAD + WORKFLOW)
        assert response.status_code == 200, response.text
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stack.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['gateway']}"

    def _start_gateway(self) -> None:
        self.gateway = self._stack.enter_context(
            servers.gateway(
                self._folder / "gateway", redis_url=self._redis.url, pool=POOL,
                port=self._ports["gateway"],
                workflows_url=f"http://127.0.0.1:{self._ports[SCHEDULERS[0]]}",
            )
        )  # fmt: skip

    def _start_scheduler(self, name: str) -> None:
        self.schedulers[name] = self._stack.enter_context(
            running_scheduler(
                self._folder / name, self._redis.url, POOL, self.url, port=self._ports[name],
            )
        )  # fmt: skip

    def _start_pod(self, name: str) -> None:
        self.pods[name] = self._stack.enter_context(
            running_pods(
                name, redis_url=self._redis.url, pool=POOL, client=self.client, lease_s=3,
                slots=2,
            )
        )  # fmt: skip

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
                self.pods[victim].kill()
                self._start_pod(victim)
        self.kills[victim] += 1
        return True

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
            if (value := _metric(self.client, scheduler.url, "pilotlight_workflow_runs_active"))
        ]
        assert self.gateway is not None
        if reserved := _metric(self.client, self.gateway.url, "pilotlight_gateway_reservations"):
            found.append(f"gateway: {reserved:g} reservations")
        for name, pod in self.pods.items():
            if busy := pod.counts(name)["busy"]:
                found.append(f"{name}: {busy} requests")
        if len(self.runners()) > len(SCHEDULERS):
            found.append(f"{len(self.runners())} runners of one workflow")
        with redis.Redis.from_url(self._redis.url, decode_responses=True) as client:
            under_way = [key for key in client.scan_iter("*runs") if client.zcard(key)]
        return found + [f"leases in {key}" for key in under_way]


def _metric(client: httpx.Client, url: str, name: str) -> float:
    text = client.get(f"{url}/metrics").text
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines()
        if line.startswith((f"{name} ", f"{name}{{"))
    )  # fmt: skip
