"""Ray Serve's default rule for the number of replicas, which Liu 2025, section 3.1, ran.

Replicas keep the mean number of ongoing requests of the look-back window at its target; a change
is made once it was wanted for its whole delay. Source: Ray Serve's documentation of
`AutoscalingConfig` (2.x), with its defaults; the thesis sets 1 to 4 replicas and target 2.
"""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class RayServeParams:
    """Times in seconds."""

    min_replicas: int = 1
    max_replicas: int = 4
    target_ongoing: float = 2.0
    """Ongoing requests per replica, queued ones included."""
    metrics_interval_s: float = 10.0
    """Between two reports of the ongoing requests."""
    look_back_s: float = 30.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0


@dataclass(frozen=True, slots=True)
class RayServeState:
    reports: tuple[tuple[float, float], ...] = ()
    """Time and ongoing requests, of the look-back window."""
    wanted_since_s: float | None = None
    """Since when more, or fewer, replicas were wanted without a break; None: as many as now."""
    is_up: bool = False


def ray_serve_replicas(
    ongoing: float, current: int, state: RayServeState, now_s: float, params: RayServeParams
) -> tuple[int, RayServeState]:
    """Replicas to have, and the next state. Call it more often than reports are made."""
    reports = tuple(each for each in state.reports if each[0] > now_s - params.look_back_s)
    last_s = state.reports[-1][0] if state.reports else 0.0
    if now_s - last_s >= params.metrics_interval_s:
        reports = (*reports, (now_s, ongoing))
    if not reports:
        return current, RayServeState(reports)
    mean = sum(count for _, count in reports) / len(reports)
    wanted = ceil(mean / params.target_ongoing)
    wanted = min(max(wanted, params.min_replicas), params.max_replicas)
    if wanted == current:
        return current, RayServeState(reports)
    is_up = wanted > current
    is_same = state.wanted_since_s is not None and state.is_up == is_up
    since_s = state.wanted_since_s if is_same and state.wanted_since_s is not None else now_s
    delay_s = params.upscale_delay_s if is_up else params.downscale_delay_s
    if now_s - since_s >= delay_s:
        return wanted, RayServeState(reports)
    return current, RayServeState(reports, since_s, is_up)
