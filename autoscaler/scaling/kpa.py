"""A peer: pods by concurrency over two windows, as Knative's pod autoscaler (KPA) does by default.

The number of pods that keeps the mean concurrency of the stable window at its target; while the
panic window asks for twice the pods that are ready or more, the larger of both, and none fewer than
before. Source: Knative's documentation of the KPA, "Scale Bounds", "Stable and panic window" and
"Target utilization", with its defaults (60 s, 10 % of it, 200 %, 70 %, at most 1,000 times up and
half down at a time). For comparison in the simulator; the platform does not use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class KpaParams:
    """Knative's defaults. Times in seconds."""

    slots: int = 1
    """Requests that a pod takes at a time."""
    target_share: float = 0.7
    """Of its slots so many are meant to be taken."""
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_threshold: float = 2.0
    """It panics when the panic window asks for so many times the pods that are ready."""
    most_up: float = 1000.0
    most_down: float = 2.0
    """At a time at most so many times the ready pods, at least the ready pods over this."""
    most_pods: int = 1000


@dataclass(frozen=True, slots=True)
class KpaState:
    """Samples of concurrency of the stable window (time, requests), and whether it panics."""

    samples: tuple[tuple[float, float], ...] = ()
    panic_s: float | None = None
    """When the panic window last asked for so much; None: it does not panic."""
    most_in_panic: int = 0


def kpa_pods(
    concurrency: float, ready: int, state: KpaState, now_s: float, params: KpaParams
) -> tuple[int, KpaState]:
    """Pods to have, after one more sample of requests in the system."""
    samples = tuple(each for each in state.samples if now_s - params.stable_s < each[0] <= now_s)
    samples = (*samples, (now_s, concurrency))
    present = max(1, ready)
    by_stable = _pods_for(samples, params.stable_s, now_s, present, params)
    by_panic = _pods_for(samples, params.panic_s, now_s, present, params)
    panic_s, most = state.panic_s, state.most_in_panic
    asked = ceil(_mean(samples, params.panic_s, now_s) / (params.slots * params.target_share))
    if asked / present >= params.panic_threshold:
        panic_s = now_s
    elif panic_s is not None and now_s - panic_s > params.stable_s:
        panic_s, most = None, 0
    pods = by_stable
    if panic_s is not None:
        most = max(most, by_stable, by_panic)
        pods = most
    return min(pods, params.most_pods), KpaState(samples, panic_s, most)


def _pods_for(
    samples: tuple[tuple[float, float], ...],
    window_s: float,
    now_s: float,
    present: int,
    params: KpaParams,
) -> int:
    wanted = ceil(_mean(samples, window_s, now_s) / (params.slots * params.target_share))
    least, most = int(present // params.most_down), ceil(present * params.most_up)
    return min(max(wanted, least), most)


def _mean(samples: tuple[tuple[float, float], ...], window_s: float, now_s: float) -> float:
    seen = [value for at_s, value in samples if at_s > now_s - window_s]
    return sum(seen) / max(1, len(seen))
