"""Gateways under OpenAI's API: CPU time per small request, and per event of a stream.

Each system runs alone on one core; pod, Redis and the load generator on the other. All are up at
once, and take turns. The routers of language models (smg, vllm-router, LiteLLM) read the body, as
Pilotlight does; Envoy and nginx pass it on.
"""

import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import orjson

from benchmarks.machine import REPOSITORY
from benchmarks.peers import ENVIRONMENT
from benchmarks.proxy.chat_pod import EVENTS
from benchmarks.proxy.compare import setup_of
from benchmarks.proxy.generator import load
from benchmarks.proxy.pod import MODEL
from benchmarks.proxy.processes import ProcessStartFailed, post
from benchmarks.proxy.serving_systems import (
    ENVOY,
    NGINX,
    PATH,
    PILOTLIGHT,
    CoreLayout,
    ReadySystem,
    RoundSetup,
    StartSystem,
    serving_systems,
    start_pod,
    start_process,
)
from pilotlight.platform.processes import free_port

STREAMS: Final = 64
_CHAT: Final = "/v1/chat/completions"
_START_S: Final = 120.0
_ASKED: Final = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
_SMALL: Final = orjson.dumps(_ASKED)
_STREAMED: Final = orjson.dumps({**_ASKED, "stream": True})
_LITELLM: Final = """
model_list:
- {model_name: m, litellm_params: {model: openai/m, api_base: "http://ADDRESS/v1", api_key: none}}
general_settings: {dangerously_permit_weak_or_unset_master_key: true}
"""


@dataclass(frozen=True, slots=True)
class RouterFigures:
    """Medians of one system's turns; None: its requests failed."""

    request_us: float | None
    requests_per_s: float
    event_us: float | None
    first_event_ms: float


def _router(program: str, flags: Callable[[str, int, Path], Sequence[str]]) -> StartSystem:
    def start_system(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
        pod, address = start_pod(stack, setup)
        port = free_port()
        command = [_path_of(program) or program, *flags(address, port, setup.folder)]
        router = start_process(stack, setup, program, command, setup.system_cores)
        return ReadySystem(f"http://127.0.0.1:{port}{PATH}", router, [pod])

    return start_system


def _vllm_router(address: str, port: int, _folder: Path) -> Sequence[str]:
    return (
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker-urls",
        f"http://{address}",
        "--policy",
        "round_robin",
        "--prometheus-port",
        str(free_port()),
        "--log-level",
        "error",
    )


def _smg(address: str, port: int, folder: Path) -> Sequence[str]:
    return ("launch", *_vllm_router(address, port, folder))


def _litellm(address: str, port: int, folder: Path) -> Sequence[str]:
    config = folder / "litellm.yaml"
    config.write_text(_LITELLM.replace("ADDRESS", address))
    return ("--host", "127.0.0.1", "--port", str(port), "--config", str(config))


_ROUTERS: Final[Mapping[str, StartSystem]] = {
    "smg": _router("smg", _smg),
    "vllm-router": _router("vllm-router", _vllm_router),
    "litellm": _router("litellm", _litellm),
}


def compare_routers(repeats: int, seconds: float) -> tuple[dict[str, RouterFigures], list[str]]:
    """Figures by system, and why others are left out."""
    chosen = {
        each.name: each.start_system
        for each in serving_systems()
        if each.name in (ENVOY, NGINX, PILOTLIGHT) and each.missing is None
    }
    found = {name: each for name, each in _ROUTERS.items() if _path_of(name)}
    left = [
        f"{name}: not in {ENVIRONMENT.name}, nor on the PATH" for name in _ROUTERS.keys() - found
    ]
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        ready: dict[str, ReadySystem] = {}
        for number, (name, start_system) in enumerate((chosen | found).items()):
            folder = Path(path) / str(number)
            folder.mkdir()
            setup = setup_of(CoreLayout.ALONE, folder, pod_module="benchmarks.proxy.chat_pod")
            try:
                system = start_system(stack, setup)
                url = system.url.removesuffix(PATH) + _CHAT
                system.process.wait_until(partial(_answers, url), timeout_s=_START_S)
                system.url = url
                ready[name] = system
            except ProcessStartFailed as error:
                left.append(f"{name}: {error}")
        return _measure(ready, Path(path), setup.generator_core, repeats, seconds), left


def _path_of(program: str) -> str | None:
    """In the peers' environment, else on the PATH: LiteLLM's own pins allow no other in its."""
    return shutil.which(program, path=str(ENVIRONMENT / "bin")) or shutil.which(program)


def _answers(url: str) -> bool:
    status, body = post(url, _SMALL)
    return status == 200 and b"choices" in body


def _measure(
    ready: Mapping[str, ReadySystem], folder: Path, core: int, repeats: int, seconds: float
) -> dict[str, RouterFigures]:
    small: dict[str, list[tuple[float, float]]] = defaultdict(list)
    streamed: dict[str, list[tuple[float, float]]] = defaultdict(list)
    body = folder / "stream.json"
    body.write_bytes(_STREAMED)
    for _ in range(repeats):
        for name in random.sample(sorted(ready), len(ready)):
            system = ready[name]
            before_s = system.process.cpu_s()
            burst = load(system.url, _SMALL, clients=64, seconds=seconds, core=core)
            if burst.requests and not burst.errors:
                cost_us = 1e6 * (system.process.cpu_s() - before_s) / burst.requests
                small[name].append((cost_us, burst.requests_per_s))
            before_s = system.process.cpu_s()
            result = _stream(system.url, body, core)
            if result["right"] == STREAMS and result["events"] == STREAMS * EVENTS:
                cost_us = 1e6 * (system.process.cpu_s() - before_s) / result["events"]
                streamed[name].append((cost_us, result["first_ms"]))
    return {
        name: RouterFigures(
            median(cost for cost, _ in small[name]) if small[name] else None,
            median(rate for _, rate in small[name]) if small[name] else 0.0,
            median(cost for cost, _ in streamed[name]) if streamed[name] else None,
            median(first for _, first in streamed[name]) if streamed[name] else 0.0,
        )
        for name in ready
    }


def _stream(url: str, body: Path, core: int) -> dict[str, float]:
    command = ["taskset", "-c", str(core), sys.executable, "-m", "benchmarks.proxy.stream_client"]
    done = subprocess.run(
        [*command, url, str(body), str(STREAMS)],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        timeout=120,
    )
    result: dict[str, float] = orjson.loads(done.stdout.partition(b"RESULT ")[2])
    return result


def table(figures: Mapping[str, RouterFigures], left: Sequence[str]) -> str:
    """Markdown, with the ratios to Envoy's."""
    lines = [
        f"| 64 clients, and {STREAMS} streams of {EVENTS} events | CPU us/request | requests/s "
        "| CPU us/event | first event, ms |",
        "|---|---|---|---|---|",
    ]
    envoy = figures.get(ENVOY)
    for name, each in sorted(figures.items(), key=lambda item: item[1].request_us or 1e9):
        request = _cost(each.request_us, envoy.request_us if envoy else None)
        event = _cost(each.event_us, envoy.event_us if envoy else None)
        lines.append(
            f"| {name} | {request} | {each.requests_per_s:,.0f} | {event} "
            f"| {each.first_event_ms:.0f} |"
        )
    return "\n".join([*lines, *(f"Left out: {each.splitlines()[0]}" for each in left)])


def _cost(cost_us: float | None, envoys_us: float | None) -> str:
    if cost_us is None:
        return "failed"
    return f"{cost_us:.0f}" + (f" ({cost_us / envoys_us:.2f})" if envoys_us else "")
