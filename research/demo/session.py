"""A running platform for the demo and live experiments: requests to samples, Liu's workloads."""

import asyncio
import base64
import io
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import numpy as np
from PIL import Image

from common.backoff import Backoff
from load.generator.records import reported_stages_ms
from pilotlight.errors import PilotlightError, RequestFailed, cancelled_by_signals
from pilotlight.platform.platform import Platform
from pilotlight.platform.settings import PlatformSettings
from registry.domain.model import ModelName, ModelPolicy, ModelSpec
from research.demo import (
    SENTENCE,
    SIMPLE_REQUESTS,
    MachineTimes,
    SimpleRun,
    TimedResponse,
    WinRun,
    WinScenario,
)

_REQUEST_TIMEOUT_S = 300.0
_SETTLE_TIMEOUT_S = 30.0
_POLL_INTERVAL = Backoff(0.001, 0.1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveSession:
    """A running platform and a plain HTTP client of its gateway."""

    platform: Platform
    client: httpx.AsyncClient

    async def create_models(self, specs: Sequence[ModelSpec]) -> None:
        """Register models and wait until the gateway, which follows the registry, serves them."""
        await self.platform.cluster.registry.put_models(specs)
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            for spec in specs:
                for attempt in itertools.count(1):
                    if (await self.client.get(f"/v2/models/{spec.name.name}")).is_success:
                        break
                    await asyncio.sleep(_POLL_INTERVAL.pause_s(attempt))

    async def make_cold(self, spec: ModelSpec) -> None:
        """Delete a model, wait until no pod holds it in any tier, create it again."""
        cluster = self.platform.cluster
        await cluster.registry.delete_models([spec.name])
        await cluster.wait_until(
            lambda: not cluster.state.holders(spec.key),
            timeout_s=_SETTLE_TIMEOUT_S,
            what=f"no pod holds {spec.name}",
        )
        await self.create_models([spec])

    async def wait_idle(self) -> None:
        """Wait until no slot is reserved; a slot is released shortly after its response is sent."""
        cluster = self.platform.cluster
        await cluster.wait_until(
            lambda: not any(pod.slots_used for pod in cluster.state.pods.values()),
            timeout_s=_SETTLE_TIMEOUT_S,
            what="all slots free",
        )

    async def predict(
        self, spec: ModelSpec, text: str, headers: Mapping[str, str] | None = None
    ) -> TimedResponse:
        """Send one text to a model of the namespace `default`, by protocol V1."""
        path = f"/v1/models/{spec.name.name}:predict"
        return await self.request(path, {"instances": [text]}, headers)

    async def request(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> TimedResponse:
        """POST a JSON body; raises RequestFailed for any status but success."""
        started_s = time.perf_counter()
        response = await self.client.post(path, json=body, headers=dict(headers or {}))
        latency_s = time.perf_counter() - started_s
        if not response.is_success:
            raise RequestFailed(f"{path}: HTTP {response.status_code}: {response.text[:300]}")
        found = response.headers
        pod = found.get("x-pilotlight-pod", "")
        stages_ms = reported_stages_ms(found.get("server-timing", ""))
        return TimedResponse(
            latency_s=latency_s,
            start=found.get("x-pilotlight-start", ""),
            pod=pod,
            predict_pod=found.get("x-pilotlight-predict-pod", pod),
            reason=found.get("x-pilotlight-reason", ""),
            request_id=found.get("x-request-id", ""),
            stages_s={stage: ms / 1000 for stage, ms in stages_ms.items()},
            body=response.json(),
        )


@asynccontextmanager
async def live_session(
    settings: PlatformSettings, on_progress: Callable[[int, int, str], None] | None = None
) -> AsyncIterator[LiveSession]:
    """A platform that runs until the context ends or a signal arrives, which raises Interrupted."""
    async with (
        cancelled_by_signals(),
        Platform(settings, on_progress) as platform,
        httpx.AsyncClient(
            base_url=platform.gateway_url,
            trust_env=False,
            timeout=_REQUEST_TIMEOUT_S,
            limits=httpx.Limits(max_connections=None),
        ) as client,
    ):
        yield LiveSession(platform, client)


async def gather_requests(*requests: Coroutine[Any, Any, T]) -> list[T]:
    """The results of concurrent requests; the first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except* PilotlightError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


SENTENCES = (
    "A cat is sleeping on the sofa.",
    "A kitten naps on the couch.",
    "The stock market fell sharply today.",
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One request, and the part of its response to print."""

    how: str
    shown: str
    response: TimedResponse


async def invoke_samples(session: LiveSession) -> list[Invocation]:
    # All three models are cold: load them at the same time.
    by_model = await gather_requests(_embed(session), _translate(session), _classify(session))
    return [invocation for each in by_model for invocation in each]


async def _embed(session: LiveSession) -> list[Invocation]:
    v1 = await session.request("/v1/models/embed:predict", {"instances": list(SENTENCES)})
    v2 = await session.request("/v2/models/embed/infer", _text_v2(SENTENCES[:2]))
    return [
        Invocation("embed: V1, by path", similarities(v1.body["predictions"]), v1),
        Invocation("embed: V2, by path", _shape(v2.body, "embedding"), v2),
    ]


async def _translate(session: LiveSession) -> list[Invocation]:
    v1 = await session.request(
        "/serving/default/translate/v1/models/translate:predict", {"instances": [SENTENCE]}
    )
    v2 = await session.request(
        "/v2/models/translate/infer",
        _text_v2([SENTENCE]),
        {"host": "translate.default.example.com"},
    )
    return [
        Invocation("translate: V1, by namespace", _shorten(v1.body["predictions"][0]), v1),
        Invocation(
            "translate: V2, by Host header", _shorten(_output(v2.body, "text")["data"][0]), v2
        ),
    ]


async def _classify(session: LiveSession) -> list[Invocation]:
    image = _image()
    v1 = await session.request(
        "/v1/models/classify-image:predict",
        {"instances": [{"image_bytes": {"b64": image}}]},
        {"host": "classify-image.default.example.com"},
    )
    v2 = await session.request(
        "/serving/default/classify-image/v2/models/classify-image/infer",
        {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [image]}]},
    )
    label = str(_output(v2.body, "label")["data"][0])
    return [
        Invocation("classify-image: V1, by Host header", _label(v1.body["predictions"][0]), v1),
        Invocation("classify-image: V2, by namespace", label, v2),
    ]


def similarities(vectors: Sequence[Sequence[float]]) -> str:
    """Cosine similarities of the first sentence; the vectors have length one."""
    matrix = np.asarray(vectors, dtype=np.float64)
    products = matrix @ matrix[0]
    others = ", ".join(f"{value:.2f}" for value in products[1:])
    return f"similarity of sentence 1 with the others: {others}"


def _text_v2(texts: Sequence[str]) -> dict[str, Any]:
    data = list(texts)
    return {"inputs": [{"name": "text", "shape": [len(data)], "datatype": "BYTES", "data": data}]}


def _output(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(each for each in body["outputs"] if each["name"] == name)
    return found


def _shape(body: Mapping[str, Any], name: str) -> str:
    tensor = _output(body, name)
    return f"{tensor['datatype']} {tensor['shape']} of model {body['model_name']}"


def _label(prediction: Mapping[str, Any]) -> str:
    return f"{prediction['label']} ({prediction['score']:.3f})"


def _shorten(text: str) -> str:
    return text if len(text) <= 48 else text[:47] + "…"


def _image() -> str:
    """A small PNG file in base64."""
    rows = np.linspace(0, 255, 96, dtype=np.uint8)
    pixels = np.stack(
        [np.tile(rows, (96, 1)), np.tile(rows[:, None], (1, 96)), np.full((96, 96), 128, np.uint8)],
        axis=-1,
    )
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


_MEASURED_TIMEOUT_S = 10.0


def t5(name: str, folder: str = "t5-small") -> ModelSpec:
    """A T5 of the object store under its own name; requests name their routing policy.

    The batch size is 1, as in the thesis: batches would make a pod that infers for other pods
    several times as fast.
    """
    return ModelSpec(
        name=ModelName("default", name),
        storage_uri=f"s3://models/{folder}",
        policy=ModelPolicy(max_batch_size=1),
    )


async def run_simple(
    session: LiveSession,
    policy: str,
    seed: int,
    *,
    model: str = "t5-small",
    requests: int = SIMPLE_REQUESTS,
) -> SimpleRun:
    """Section 6.2: sequential translations, with the model cold on all pods at the start."""
    spec = t5("liu-62", model)
    await session.make_cold(spec)
    answers = []
    for index in range(requests):
        headers = {"x-pilotlight-policy": policy, "x-pilotlight-seed": str(seed * 1000 + index)}
        answers.append(await session.predict(spec, SENTENCE, headers))
        await session.wait_idle()
    return SimpleRun(policy, seed, tuple(answers))


async def measure_machine_times(session: LiveSession) -> MachineTimes:
    """Load and inference time of a single request."""
    spec = t5("liu-64")
    await session.make_cold(spec)
    cold = await session.predict(spec, SENTENCE, {"x-pilotlight-policy": "colocation"})
    warm = await session.predict(spec, SENTENCE, {"x-pilotlight-policy": "colocation"})
    await session.wait_idle()
    return MachineTimes(
        load_s=cold.stages_s.get("load", 0.0), infer_s=warm.stages_s.get("infer", 0.0)
    )


async def run_win(
    session: LiveSession, scenario: WinScenario, policy: str, sleep_s: float
) -> WinRun:
    """Section 6.4: two concurrent translations, after a warming one if the scenario has one.

    `auto` uses the measurements of the other policies' runs, so it first waits for the pods'
    reports.
    """
    if policy == "auto":
        await _wait_measured(session, scenario)
    spec = t5(scenario.model)
    await session.make_cold(spec)
    headers = {"x-pilotlight-policy": policy}
    if work := scenario.simulated_work(sleep_s):
        headers["x-pilotlight-simulate"] = work
    warming = None
    if scenario.is_prewarmed:
        warming = await session.predict(spec, SENTENCE, headers)
        await session.wait_idle()
    started_s = time.perf_counter()
    answers = await gather_requests(*(session.predict(spec, SENTENCE, headers) for _ in range(2)))
    concurrent_s = time.perf_counter() - started_s
    await session.wait_idle()
    return WinRun(scenario, policy, sleep_s, warming, concurrent_s, tuple(answers))


async def _wait_measured(session: LiveSession, scenario: WinScenario) -> None:
    """Wait for the measurements that `auto` needs; pods report once a second."""
    measured = ["infer", "load:remote"]
    measured += ["network"] if scenario.has_slow_network else []
    measured += ["postprocess"] if scenario.has_postprocessing else []
    key = t5(scenario.model).key
    cluster = session.platform.cluster
    await cluster.wait_until(
        lambda: all(cluster.state.measured(key).get(name) for name in measured),
        timeout_s=_MEASURED_TIMEOUT_S,
        what=f"{scenario.model}: measurements of {', '.join(measured)}",
    )
