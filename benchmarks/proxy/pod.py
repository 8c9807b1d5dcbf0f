"""A trivial pod: reads a body and sends a constant response; can register like a real pod.

`--port` serves with uvicorn; `--address` only keeps another server registered.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Final

import uvicorn

from registry.domain.application import AccuracyProfile, ApplicationSpec, InputTensor, SneakPeekSpec
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.pod import PodInfo, PodReport, Samples
from registry.domain.pod_state import ANY_COPIES
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry

RESPONSE: Final = b'{"predictions":[1]}'
MODEL: Final = "m"
APPLICATION, LOOKING = "app", "looking"
"""Applications with one variant each; requests to the second are looked at."""
CLASSES: Final = ("no", "yes")
DIMENSIONS: Final = 64
NAME: Final = "pod-0"
TIMING: Final = "load;dur=0.0, preprocess;dur=0.1, infer;dur=0.2, postprocess;dur=0.1"
_SLOTS: Final = 1024
_HEARTBEAT_S: Final = 1.0
_HEADERS: Final = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(RESPONSE)).encode()),
    (b"x-pilotlight-pod", NAME.encode()),
    (b"x-pilotlight-start", b"warm"),
    (b"server-timing", TIMING.encode()),
]


async def application(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    """Read the complete body, then respond."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": RESPONSE})


@contextlib.asynccontextmanager
async def registered(
    redis_url: str, address: str, look: str | None, *, has_variants: bool, infer_s: float
) -> AsyncIterator[None]:
    """Keep the pod registered, warm for the models and with measurements.

    `look`: folder of a trained look at requests' data; then applications are declared as well.
    `has_variants`: their variants are declared also without them, as plain models.
    `infer_s`: the reported time of an inference, on which depends who reserves at Redis.
    """
    registry = await Registry.connect(redis_url)
    info = PodInfo(NAME, address, "node-0", slots=_SLOTS, memory_bytes=1 << 30)
    epoch = await registry.register_pod(info)
    specs = [_spec(MODEL)]
    if look is not None or has_variants:
        specs += [
            _spec(f"{name}-small", None if look is None else name)
            for name in (APPLICATION, LOOKING)
        ]
    await registry.put_models(specs)
    for spec in specs:
        await _load(registry, epoch, spec, infer_s)
    if look is not None:
        await _declare_applications(registry, specs[1:], look)
    async with asyncio.TaskGroup() as group:
        heartbeats = group.create_task(_send_heartbeats(registry, epoch))
        try:
            yield
        finally:
            heartbeats.cancel()
    await registry.close()


def _spec(name: str, application: str | None = None) -> ModelSpec:
    policy = ModelPolicy(application=application)
    return ModelSpec(ModelName("default", name), "file:///nowhere", policy=policy)


async def _load(registry: Registry, epoch: int, spec: ModelSpec, infer_s: float) -> None:
    token = await registry.claim_load(NAME, epoch, spec.key, ANY_COPIES)
    if token is None:
        raise RuntimeError("the claim on an empty registry was refused")
    await registry.start_load(NAME, epoch, spec.key, token, Tier.DISK)
    await registry.finish_load(NAME, epoch, spec.key, token, 1 << 20)
    times_s = {"preprocess": 0.0001, "infer": infer_s, "postprocess": 0.0001, "network": 0.0005}
    samples = tuple(Samples(spec.key, measure, (value,)) for measure, value in times_s.items())
    await registry.heartbeat(NAME, epoch, PodReport(samples=samples))


async def _declare_applications(
    registry: Registry, variants: Sequence[ModelSpec], look: str
) -> None:
    for spec in variants:
        application = ApplicationSpec(
            ModelName("default", str(spec.policy.application)),
            CLASSES,
            inputs=(InputTensor("features", "FP32", (-1, DIMENSIONS)),),
        )
        if spec.policy.application == LOOKING:
            peek = SneakPeekSpec(f"file://{look}", short_circuit=False)
            application = replace(application, sneak_peek=peek)
        await registry.put_applications([application])
        await registry.put_accuracy(AccuracyProfile(spec.key, CLASSES, ((9, 1), (1, 9))))


async def _send_heartbeats(registry: Registry, epoch: int) -> None:
    while True:
        await asyncio.sleep(_HEARTBEAT_S)
        with contextlib.suppress(RegistryUnavailable):
            await registry.heartbeat(NAME, epoch, PodReport())


async def _serve(port: int) -> None:
    config = uvicorn.Config(
        application,
        port=port,
        http="httptools",
        log_level="error",
        access_log=False,
        lifespan="off",
        backlog=4096,
    )
    await uvicorn.Server(config).serve()


async def _run(
    port: int | None,
    address: str | None,
    redis_url: str | None,
    look: str | None,
    *,
    has_variants: bool,
    infer_s: float,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if redis_url is not None:
            pod = registered(
                redis_url,
                address or f"127.0.0.1:{port}",
                look,
                has_variants=has_variants,
                infer_s=infer_s,
            )
            await stack.enter_async_context(pod)
        if port is not None:
            await _serve(port)
        else:
            await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy.pod")
    parser.add_argument("--port", type=int)
    parser.add_argument("--address")
    parser.add_argument("--redis-url")
    parser.add_argument("--look", help="declare applications; folder of a trained look")
    parser.add_argument("--variants", action="store_true", help="declare the variants as models")
    parser.add_argument("--infer-s", type=float, default=0.0002, help="reported, whatever it takes")
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(
            _run(
                given.port,
                given.address,
                given.redis_url,
                given.look,
                has_variants=given.variants,
                infer_s=given.infer_s,
            )
        )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


if __name__ == "__main__":
    main()
