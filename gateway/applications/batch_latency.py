"""What a variant's requests cost a pod's device where they run as batches, by a profile. Pure.

b requests take about `setup_s` + b * `each_s`: the line through the times of one request and of all
of the window's, or of the largest batch that is worth forming. Every batch pays its setup, which a
plan counts where a worker changes to another variant, as it counts swaps. A pod that idles does not
wait for a batch: its first request runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.request_size import seconds_at_size

if TYPE_CHECKING:
    from registry.domain.estimates import StageTimes
    from registry.domain.profile import Profile


@dataclass(frozen=True, slots=True)
class BatchLatency:
    setup_s: float
    each_s: float
    rest_s: float
    """Until the last request of a batch is done, from the turn of its first one."""


def batch_latency(
    profile: Profile, requests: int, *, max_rows: int | None, is_idle: bool
) -> BatchLatency:
    """`max_rows`: the largest batch by the model's annotation; None: by the profile."""
    points = [(float(each.rows), each.latency_s) for each in profile.points]
    one_s = seconds_at_size(points, 1)
    rows = min(requests, max_rows or profile.best_rows)
    if rows <= 1:
        return BatchLatency(0.0, one_s, 0.0)
    if is_idle:
        each_s = seconds_at_size(points, rows - 1) / (rows - 1)
    else:
        each_s = max(seconds_at_size(points, rows) - one_s, 0.0) / (rows - 1)
    each_s = min(each_s, one_s)
    return BatchLatency(one_s - each_s, each_s, each_s * (rows - 1))


def lately_measured(times: StageTimes) -> BatchLatency:
    """Without a profile: what pods of the kind measured, in batches of whatever size."""
    return BatchLatency(0.0, times.share_s, max(0.0, times.infer_s - times.share_s))
