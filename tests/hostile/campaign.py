"""`python -m tests.hostile.campaign --requests 100000`: hostile requests to a real gateway and pod.

Hypothesis draws the requests of each channel from its grammar, with a printed seed. A request fails
that gets a 500, a 502 although no pod died, a 503 or 504 without a reason of ours, or none; that
ends a process, leaves a traceback in a log, or blocks an event loop. Hypothesis minimises it.
"""

import argparse
import math
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.hostile import channels, declarations
from tests.hostile.channels import Hostile
from tests.hostile.grpc_calls import GrpcCall
from tests.hostile.heads import HttpRequest
from tests.hostile.target import Outcome, Target, running_target

MAX_TURN_S: Final = 0.05
YAML_S_PER_BYTE: Final = 50e-6
"""PyYAML reads 50 to 100 KB/s; no event loop waits for it."""
REPEATS: Final = 4
"""A long turn counts if it is as long each time the request is sent again."""
BATCH: Final = 2_000
"""Requests of one run of Hypothesis, which keeps what it has drawn."""
SHRINK_S: Final = 60.0
"""For smaller requests that fail, too; sending a large one takes seconds."""
_GRPC_FAULTS: Final = {"INTERNAL", "UNKNOWN", "DATA_LOSS"}
_REASONS: Final = {
    "503": {
        "slots", "draining", "device-full", "load-failed", "load-refused", "no-memory",
        "not-taken", "lost-pods", "bodies-full", "not-ready", "no-pods", "queue-no-slot",
    },
    "504": {"deadline", "queue-timeout"},
}  # fmt: skip
"""Of the gateway, and of the pod's header `x-pilotlight-not-executed`."""

_UVICORN: Final = b"Invalid HTTP request received."
"""A pod's response to what is not HTTP; gateways send it none of that."""
_ROUTER_ERROR: Final = b'{"error":"Failed to process request"'
"""Of a graph whose steps fail, with status 500, as KServe's router responds."""


@dataclass
class Findings:
    """Of one channel."""

    count: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the longest turn by process, at the first attempt."""
    failure: str = ""


class HostileRequestFailed(AssertionError):
    pass


def check_outcome(target: Target, request: Hostile, outcome: Outcome) -> None:
    """Raises HostileRequestFailed for a response or an end that no request may cause."""
    for process in target.processes:
        if not process.is_alive():
            raise HostileRequestFailed(f"the {process.name} ended")
        if "Traceback" in (log := process.new_log()):
            raise HostileRequestFailed(f"the {process.name} failed:\n{log[-3000:]}")
    status = outcome.status
    if isinstance(request, GrpcCall):
        if status in _GRPC_FAULTS:
            raise HostileRequestFailed(f"gRPC {status}: {outcome.reason}")
        return
    if request.is_whole and not status.isdigit():
        raise HostileRequestFailed(f"no response: {status} {outcome.reason}")
    if status in ("500", "502") and not outcome.body.startswith(_ROUTER_ERROR):
        raise HostileRequestFailed(f"{status}: {outcome.body[:300]!r}")
    if status in _REASONS and not _has_reason(request, outcome):
        raise HostileRequestFailed(f"{status}, reason {outcome.reason!r}: {outcome.body[:300]!r}")
    is_explained = outcome.body.startswith(b"{") or outcome.body == _UVICORN
    if status[0] in "45" and request.is_whole and not is_explained:
        raise HostileRequestFailed(f"{status} without an error in JSON: {outcome.body[:300]!r}")


def _has_reason(request: HttpRequest, outcome: Outcome) -> bool:
    if request.content.startswith(b"HEAD"):
        return True  # its response has no body
    if b'"ready":false' in outcome.body or b'"live":false' in outcome.body:
        return True  # readiness of a model that is not loaded
    return outcome.reason in _REASONS[outcome.status]


def check_turns(target: Target, request: Hostile) -> float:
    """The longest turn of an event loop; raises HostileRequestFailed if it is too long again."""
    longest = target.longest_turn()
    if longest.seconds <= MAX_TURN_S:
        return longest.seconds
    seen = []
    for _ in range(REPEATS):
        target.reset_probes()
        target.send(request)
        seen.append(target.longest_turn())
        if seen[-1].seconds <= MAX_TURN_S:
            target.reset_probes()
            return seen[-1].seconds
    target.reset_probes()
    turns = ", ".join(f"{each.loop_s * 1000:.0f} ({each.lock_s * 1000:.0f})" for each in seen)
    raise HostileRequestFailed(
        f"an event loop was blocked for more than {MAX_TURN_S * 1000:.0f} ms of CPU time in each of"
        f" {REPEATS} attempts: {turns} ms (in brackets: by another thread's lock)"
    )


def search(
    strategy: SearchStrategy[Any], attempt: Callable[[Any], None], *, count: int, of_seed: int
) -> str:
    """Draw `count` requests; returns a small failing one with its error, or an empty text."""
    failed: list[str] = []
    until_s = math.inf

    @seed(of_seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(strategy)
    def run(request: Any) -> None:
        nonlocal until_s
        if time.monotonic() > until_s:
            return  # the smaller ones are not tried: large objects take minutes
        try:
            attempt(request)
        except Exception as error:
            until_s = min(until_s, time.monotonic() + SHRINK_S)
            failed.append(f"{type(error).__name__}: {error}\nrequest: {_short(request)}")
            raise

    try:
        run()
    except Exception:
        if not failed:
            raise
        return failed[-1]  # the last one that failed is the smallest one
    return ""


def _short(request: object) -> str:
    text = repr(request)
    return text if len(text) < 6_000 else f"{text[:3_000]} … {text[-3_000:]}"


def run_channel(target: Target, channel: str, count: int, of_seed: int) -> Findings:
    found = Findings()

    def attempt(request: Hostile) -> None:
        found.count += 1
        outcome = target.send(request)
        found.statuses[f"{outcome.status} {outcome.reason}".strip()[:40]] += 1
        if found.count % 50 == 0 or not outcome.status.startswith("4"):
            for process in target.processes:
                turn_s = process.probe.read().seconds
                found.longest_s[process.name] = max(found.longest_s.get(process.name, 0.0), turn_s)
        check_outcome(target, request, outcome)
        check_turns(target, request)

    return _in_batches(found, channels.CHANNELS[channel], attempt, count, of_seed)


def run_declarations(channel: str, count: int, of_seed: int) -> Findings:
    found = Findings()
    strategy, read = declarations.CHANNELS[channel]

    def attempt(given_value: Any) -> None:
        found.count += 1
        took_s = []
        for _ in range(REPEATS):
            began_s = time.thread_time()
            verdict = read(given_value)
            length = len(given_value) if isinstance(given_value, bytes) else 0
            took_s.append(time.thread_time() - began_s - length * YAML_S_PER_BYTE)
            if took_s[-1] <= MAX_TURN_S:
                break
        found.statuses[verdict] += 1
        found.longest_s["reader"] = max(found.longest_s.get("reader", 0.0), min(took_s))
        if min(took_s) > MAX_TURN_S:
            raise HostileRequestFailed(f"reading took {min(took_s) * 1000:.0f} ms of CPU time")

    return _in_batches(found, strategy, attempt, count, of_seed)


def _in_batches(
    found: Findings,
    strategy: SearchStrategy[Any],
    attempt: Callable[[Any], None],
    count: int,
    of_seed: int,
) -> Findings:
    for batch, begin in enumerate(range(0, count, BATCH)):
        size = min(BATCH, count - begin)
        found.failure = search(strategy, attempt, count=size, of_seed=of_seed + batch)
        if found.failure:
            found.failure += f"\nseed: {of_seed + batch}"
            break
    return found


def check_end(target: Target, baselines: dict[str, int]) -> list[str]:
    """What is wrong after all requests: memory over its bound, a model that is not served."""
    problems = []
    for process in target.processes:
        grown = process.memory_bytes("VmHWM") - baselines[process.name]
        print(f"{process.name}: at most {grown >> 20} MiB more than at the start", flush=True)
        if grown > process.memory_limit:
            problems.append(f"the {process.name} took {grown >> 20} MiB more")
    problems += [f"{model} is not served: {text}" for model, text in serve_all(target).items()]
    return problems


def serve_all(target: Target) -> dict[str, str]:
    """Models that do not serve a valid request, with the response."""
    failed: dict[str, str] = {}
    documents = {"text": '["x"]', "embedder": '["x"]', "t5": '["x"]', "rows": "[[1,2,3,4]]"}
    for model, instances in documents.items():
        body = b'{"instances": %b}' % instances.encode()
        path = f"/v1/models/{model}:predict".encode()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path, len(body))
        outcome = target.send(HttpRequest(head + body, is_whole=True))
        if outcome.status != "200":
            failed[model] = f"{outcome.status} {outcome.body[:300]!r}"
    return failed


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", default="", help="channels, separated by commas")
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    names = [*channels.CHANNELS, *declarations.CHANNELS]
    names = [each for each in names if not arguments.only or each in only]
    each_count = -(-arguments.requests // len(names))
    print(f"seed {arguments.seed}, {each_count} requests per channel", flush=True)
    problems = []
    with tempfile.TemporaryDirectory() as folder, running_target(Path(folder)) as target:
        problems += [f"{model}: {text}" for model, text in serve_all(target).items()]
        baselines = {each.name: each.memory_bytes() for each in target.processes}
        for channel in names:
            began_s = time.monotonic()
            if channel in channels.CHANNELS:
                found = run_channel(target, channel, each_count, arguments.seed)
            else:
                found = run_declarations(channel, each_count, arguments.seed)
            _print(channel, found, time.monotonic() - began_s)
            if found.failure:
                problems.append(f"{channel}: {found.failure}")
            if not all(process.is_alive() for process in target.processes):
                break
        else:
            problems += check_end(target, baselines)
    for problem in problems:
        print(f"\nFAILED: {problem}", flush=True)
    sys.exit(1 if problems else 0)


def _print(channel: str, found: Findings, took_s: float) -> None:
    statuses = ", ".join(f"{status}: {count}" for status, count in found.statuses.most_common(12))
    turns = ", ".join(f"{name} {s * 1000:.0f} ms" for name, s in found.longest_s.items())
    print(
        f"{channel}: {found.count} in {took_s:.0f} s; longest turn {turns}; {statuses}", flush=True
    )


if __name__ == "__main__":
    main()
