"""Settings played on live platforms: real gateway, registry, pods, loads and inferences.

Before the first setting of a platform its models, loads and hops are measured, one at a time.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from benchmarks.fidelity.settings import Arrival, Setting, Shape
from benchmarks.proxy.processes import cpu_by_role
from common.http_client import HttpClient
from load.generator.bodies import drawn_example, example_body, read_rules_examples
from load.generator.records import RequestResult, http_error
from load.generator.settings import ExampleRules
from load.generator.target import parse_url
from pilotlight.commands.live_cluster import live_cluster_file
from pilotlight.commands.pod_profile import measure_profile
from pilotlight.commands.profile_application import profile_application
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import RequestFailed
from pilotlight.output import Output
from pilotlight.platform.machine import Machine
from registry.domain.model import ModelSpec, Tier
from registry.domain.pod_state import PodState
from research.demo.session import LiveSession
from variants.application import read_application
from variants.labelled_examples import LabelledExamples

_ROUNDS: Final = 3
"""Of single requests to all models, which evict each other where memory is short."""
_WARM_REQUESTS: Final = 4
_PROFILE: Final = {"most_rows": 32, "repeats": 3}
_LABELLED: Final = 60
"""Examples from which an application's variants are profiled."""
_SETTLE_S: Final = 30.0
_LOAD_S: Final = 60.0
_OK: Final = 200
_FIRST_REQUESTS: Final = 5
_REPORTED_S: Final = 1.2
"""Pods report measurements and loads once a second."""
_ATTEMPTS: Final = 3
_RIVAL_CORES: Final = 0.05
_RIVALS_END_S: Final = 120.0
_FORGET_S: Final = 1.5
"""Without models, so that the autoscaler drops their counts."""
_MEASURES: Final = (
    "infer", "share", "preprocess", "postprocess", "network", "assets",
    *(f"load:{tier}" for tier in Tier),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one arrival. Times in seconds."""

    latency_s: float
    start: str = ""
    late_s: float = 0.0
    """Delay of its sending."""
    pod: str = ""
    predict_pod: str = ""
    reason: str = ""
    stages_s: dict[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """A setting's live run."""

    outcomes: list[Outcome]
    """In the order of arrivals."""
    known_s: dict[str, dict[str, float]]
    """The registry's estimates at the start, by model key and measure."""
    loads: int
    """Of all pods, preloads included."""
    took_s: float
    cpu_s: dict[str, float]
    """By role of processes, as `cpu_by_role`."""


class LiveShape:
    """A running platform with its models declared."""

    def __init__(self, session: LiveSession, shape: Shape, machine: Machine) -> None:
        self._session = session
        self._machine = machine
        self._shape = shape
        self._specs = shape.specs()
        self._cluster = session.platform.cluster
        self._folder = session.platform.settings.objects / "applications"
        self._examples: LabelledExamples | None = None
        self._target = PlatformTarget(session.platform.settings.state_dir)
        self._client = HttpClient(max_idle_s=4.0, max_idle=256)
        self._address = parse_url(session.platform.gateway_url).address

    async def measure(self) -> dict[str, Any]:
        """Facts for `simulated.cluster_document`: single requests, profiles, the cluster file."""
        await _wait_alone()
        await self._session.create_models(self._specs)
        applications = [await self._profiled_application()] if self._shape.application else []
        requests = await self._one_by_one()
        profiles = {}
        for number, spec in enumerate(self._specs):
            pods = sorted(self._cluster.state.pods.values(), key=lambda pod: pod.name)
            holders = self._cluster.state.holders(spec.key)
            held = [pod for pod in pods if (at := holders.get(pod.name)) and at.is_warm]
            plan = _PROFILE | {"tokens": self._shape.tokens_of(number)}
            pod = (held or pods)[0]
            profiles[spec.key] = await measure_profile(self._target, pod, spec.name, plan)
        await asyncio.sleep(_REPORTED_S)
        return {
            "shape": asdict(self._shape),
            "cores": os.cpu_count(),
            "requests": requests,
            "profiles": profiles,
            "applications": applications,
            "cluster_file": live_cluster_file(self._cluster.state, machine=self._machine),
        }

    async def _profiled_application(self) -> dict[str, Any]:
        """Declared, with its variants' accuracies measured: a section of a cluster file."""
        document, name = self._shape.application_document(), self._shape.application
        spec = read_application(document, name)
        await self._cluster.registry.put_applications([spec])
        file = self._folder / f"{name}-requests.npz"
        self._examples = read_rules_examples(ExampleRules(str(file)))
        await self._all_warm()
        file = self._folder / f"{name}-profile.npz"
        with contextlib.redirect_stdout(sys.stderr):
            await profile_application(self._target, Output(), spec, file, _LABELLED, _PROFILE)
        accuracies = self._cluster.state.accuracies.items()
        confusions = {model.name: [*map(list, each.confusion)] for model, each in accuracies}
        return {"name": name, "spec": document["spec"], "profile": confusions}

    async def _one_by_one(self) -> list[dict[str, Any]]:
        """Single requests at every model: loads, warm ones, and ones through another pod."""
        found = []
        routing = ("colocation",) * _ROUNDS + ("remote-proxy",)
        for policy in ("lo-edf",) * len(routing) if self._shape.application else routing:
            for number in range(len(self._shape.targets)):
                for row in range(1 + _WARM_REQUESTS):
                    before = cpu_by_role()
                    outcome = await self._outcome(Arrival(0.0, number, 0), policy, row)
                    cpu_s = {role: at - before.get(role, 0.0) for role, at in cpu_by_role().items()}
                    about = {"model": number, "policy": policy, "cpu_s": cpu_s}
                    found.append(about | asdict(outcome))
                    await self._session.wait_idle()
        return found

    async def play(self, setting: Setting, arrivals: Sequence[Arrival]) -> Played:
        """Send all arrivals, open loop; again if other work took cores meanwhile."""
        for _ in range(_ATTEMPTS):
            await _wait_alone()
            found = await self._play(setting, arrivals)
            if found.cpu_s["rivals"] <= _RIVAL_CORES * found.took_s:
                break
        return found

    async def _play(self, setting: Setting, arrivals: Sequence[Arrival]) -> Played:
        await (self._all_warm() if setting.is_warm else self._all_cold())
        await asyncio.sleep(_REPORTED_S)
        known_s = {spec.key: self._known_s(spec.key) for spec in self._specs}
        loads, before = self._loads(), cpu_by_role()
        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for row, each in enumerate(arrivals):
                await asyncio.sleep(start_s + each.at_s - time.perf_counter())
                sent = self._outcome(each, setting.policy, row, setting.seed, start_s)
                tasks.append(group.create_task(sent))
        took_s = time.perf_counter() - start_s
        cpu_s = {role: now - before.get(role, 0.0) for role, now in cpu_by_role().items()}
        await self._session.wait_idle()
        await asyncio.sleep(_REPORTED_S)
        outcomes = [task.result() for task in tasks]
        return Played(outcomes, known_s, self._loads() - loads, took_s, cpu_s)

    def _loads(self) -> int:
        return sum(pod.loads_total for pod in self._cluster.state.pods.values())

    def _known_s(self, key: str) -> dict[str, float]:
        measured = self._cluster.state.measured(key)
        found = {measure: measured.get(measure) for measure in _MEASURES}
        return {measure: each.seconds for measure, each in found.items() if each is not None}

    async def _outcome(
        self,
        arrival: Arrival,
        policy: str,
        row: int,
        seed: int = 0,
        start_s: float | None = None,
        *,
        to: str = "",
    ) -> Outcome:
        path, body = self._request(to or self._shape.targets[arrival.model], arrival, row, seed)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: live\r\n"
            f"content-length: {len(body)}\r\ncontent-type: application/json\r\n"
            f"x-pilotlight-policy: {policy}\r\nx-pilotlight-seed: {arrival.seed}\r\n\r\n"
        )
        sent_s = time.perf_counter()
        found = await self._exchange(head.encode(), body)
        return Outcome(
            time.perf_counter() - sent_s,
            found.start or "",
            0.0 if start_s is None else sent_s - start_s - arrival.at_s,
            found.entry_pod or "",
            found.predict_pod or found.entry_pod or "",
            found.reason or "",
            {stage: each / 1000 for stage, each in found.stages_ms.items()},
            found.error or "",
        )

    def _request(self, name: str, arrival: Arrival, row: int, seed: int) -> tuple[str, bytes]:
        """Path and body; an application's have the example that the simulator takes for the row."""
        if self._examples is not None:
            at = drawn_example(seed, row, len(self._examples.labels))
            return f"/v2/models/{name}/infer", example_body(self._examples, at)
        text = " ".join(["fox"] * (self._shape.tokens_of(arrival.model) - 2))
        return f"/v1/models/{name}:predict", orjson.dumps({"instances": [text]})

    async def _exchange(self, head: bytes, body: bytes) -> RequestResult:
        """By the load generator's client: httpx takes several times its computing time."""
        result, response = RequestResult(), b""
        connection = await self._client.take(self._address)
        connection.start()
        connection.write(head, [body])
        await connection.wait_head()
        result.status = connection.status
        result.read_headers(connection.headers)
        while not connection.is_taken:
            await connection.wait_body()
            response += b"".join(connection.take_body())
        self._client.release(self._address, connection)
        if result.status != _OK:
            result.fail(http_error(result.status, response))
        return result

    async def _all_warm(self) -> None:
        """Load what is not on every pod's device."""
        for spec in self._specs:
            for pod in self._cluster.state.pods.values():
                holder = self._cluster.state.holders(spec.key).get(pod.name)
                if holder is None or not holder.is_warm:
                    await self._load(pod, spec)
        await self._cluster.wait_until(
            lambda: all(
                len(holders) == self._shape.pods and all(each.is_warm for each in holders.values())
                for spec in self._specs
                for holders in [self._cluster.state.holders(spec.key)]
            ),
            timeout_s=_SETTLE_S,
            what="all models on all pods",
        )
        # A pod's first inferences take several times as long.
        for number, spec in enumerate(self._specs):
            for seed in range(_FIRST_REQUESTS * self._shape.pods):
                arrival = Arrival(0.0, number, seed)
                await self._outcome(arrival, "random", seed, to=spec.name.name)
        await self._session.wait_idle()

    async def _load(self, pod: PodState, spec: ModelSpec) -> None:
        path = f"/v2/repository/models/{spec.name.path_segment}/load"
        response = await self._target.request_pod(pod, "POST", path, timeout_s=_LOAD_S)
        if not response.is_success:
            raise RequestFailed(f"{spec.name} cannot be loaded to {pod.name}: {response.text}")

    async def _all_cold(self) -> None:
        """Return when no pod has a model, and all pods have reported free memory."""
        cluster = self._cluster
        await cluster.registry.delete_models([spec.name for spec in self._specs])
        await cluster.wait_until(
            lambda: (
                not any(cluster.state.holders(spec.key) for spec in self._specs)
                and all(pod.free_bytes == pod.memory_bytes for pod in cluster.state.pods.values())
            ),
            timeout_s=_SETTLE_S,
            what="all pods without models",
        )
        if self._shape.loading:
            await asyncio.sleep(_FORGET_S)
        await self._session.create_models(self._specs)


async def _wait_alone() -> None:
    """Return when no other work takes cores, or after a while."""
    until_s = time.monotonic() + _RIVALS_END_S
    while time.monotonic() < until_s:
        before_s = cpu_by_role()["rivals"]
        await asyncio.sleep(1.0)
        if cpu_by_role()["rivals"] - before_s <= _RIVAL_CORES:
            return
