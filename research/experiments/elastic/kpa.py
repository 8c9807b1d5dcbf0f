"""Knative's pod autoscaler (KPA) with its defaults, as a baseline: pods by concurrency.

The number of pods keeps the mean concurrency of the stable window at its target. While the panic
window requires at least twice the ready pods, the larger number of both windows applies, and the
number never falls. Source: Knative's documentation of the KPA, "Scale Bounds", "Stable and
panic window" and "Target utilization", with its defaults (60 s, 10 % of it, 200 %, 70 %, at most
1,000 times up and half down at a time).
"""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class KpaParams:
    """Knative's defaults. Times in seconds."""

    slots: int = 1
    """Concurrent requests per pod."""
    target_share: float = 0.7
    """Target utilization of the slots."""
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_threshold: float = 2.0
    """Panic starts when the panic window requires this many times the ready pods."""
    max_scale_up_rate: float = 1000.0
    max_scale_down_rate: float = 2.0
    """A plan has at most the ready pods times the first, at least the ready pods divided by the
    second."""
    max_pods: int = 1000


@dataclass(frozen=True, slots=True)
class KpaState:
    """Samples of the stable window (time, concurrency), and the state of panic."""

    samples: tuple[tuple[float, float], ...] = ()
    panic_s: float | None = None
    """When the panic threshold was last exceeded; None: no panic."""
    max_in_panic: int = 0


def kpa_pods(
    concurrency: float, ready: int, state: KpaState, now_s: float, params: KpaParams
) -> tuple[int, KpaState]:
    """Pods to have after one more sample of the number of requests in the system."""
    samples = tuple(each for each in state.samples if now_s - params.stable_s < each[0] <= now_s)
    samples = (*samples, (now_s, concurrency))
    ready = max(1, ready)
    by_stable = _bounded(_pods_for(samples, params.stable_s, now_s, params), ready, params)
    panic_pods = _pods_for(samples, params.panic_s, now_s, params)
    panic_s, max_in_panic = state.panic_s, state.max_in_panic
    if panic_pods / ready >= params.panic_threshold:
        panic_s = now_s
    elif panic_s is not None and now_s - panic_s > params.stable_s:
        panic_s, max_in_panic = None, 0
    pods = by_stable
    if panic_s is not None:
        pods = max_in_panic = max(max_in_panic, by_stable, _bounded(panic_pods, ready, params))
    return min(pods, params.max_pods), KpaState(samples, panic_s, max_in_panic)


def _pods_for(
    samples: tuple[tuple[float, float], ...], window_s: float, now_s: float, params: KpaParams
) -> int:
    """Pods that bring the mean concurrency of a window to its target."""
    values = [value for at_s, value in samples if at_s > now_s - window_s]
    mean = sum(values) / max(1, len(values))
    return ceil(mean / (params.slots * params.target_share))


def _bounded(pods: int, ready: int, params: KpaParams) -> int:
    low = int(ready // params.max_scale_down_rate)
    return min(max(pods, low), ceil(ready * params.max_scale_up_rate))
