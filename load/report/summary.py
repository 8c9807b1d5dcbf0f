"""A run in numbers: counts, percentiles, deadline misses, goodput, fairness, late sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from load.generator.settings import LATE_S
from load.report.loading import loading_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.report.run import Floats, GroupedNames, Run

PERCENTILES: Final = (50, 90, 95, 99)


def summarise(run: Run) -> dict[str, Any]:
    """One run as a JSON document. Times in seconds, rates per second, ratios from 0 to 1."""
    statuses, counts = np.unique(run.status, return_counts=True)
    lateness = run.sent_s - run.scheduled_s
    lateness = lateness[~np.isnan(lateness)]
    with_deadline = int(run.has_deadline.sum())
    return {
        "run": run.name,
        "interrupted": run.was_interrupted,
        "requests": run.requests,
        "duration_s": run.duration_s,
        "offered_rps": run.offered_rps,
        "goodput_rps": run.goodput_rps,
        "ok": int(run.is_ok.sum()),
        "by_status": {str(s): int(n) for s, n in zip(statuses, counts, strict=True)},
        "by_start": run.start.counts(),
        "cold_starts": int(run.is_cold.sum()),
        "loading_s": loading_s(run),
        "all_loading_s": run.all_loading_s,
        "wasted_memory_byte_s": run.wasted_memory_byte_s,
        "with_deadline": with_deadline,
        "deadline_misses": int(run.is_missed.sum()),
        "late_sends": int((lateness > LATE_S).sum()),
        "late_after_s": LATE_S,
        "not_sent": int(np.isnan(run.sent_s).sum()),
        "send_lateness_s": percentiles(lateness),
        "fairness": fairness(run),
        "latency_s": percentiles(run.latency_s),
        "by_model": _by(run.model, run),
        "by_policy": _by(run.policy, run),
    }


def percentiles(values: Floats) -> dict[str, float | None]:
    """`p50` to `p99` and the largest; None where there are no values."""
    known = values[~np.isnan(values)]
    names = [*(f"p{each}" for each in PERCENTILES), "max"]
    if not len(known):
        return dict.fromkeys(names)
    found = np.percentile(known, [*PERCENTILES, 100])
    return {name: float(value) for name, value in zip(names, found, strict=True)}


def _by(names: GroupedNames, run: Run) -> dict[str, Any]:
    return {
        name: {
            "requests": len(rows),
            "ok": int(run.is_ok[rows].sum()),
            "cold_starts": int(run.is_cold[rows].sum()),
            "deadline_misses": int(run.is_missed[rows].sum()),
            "latency_s": percentiles(run.latency_s[rows]),
        }
        for name, rows in names.groups()
    }


def good_shares(run: Run) -> dict[str, float]:
    """For each tenant the share of its requests that were answered in time."""
    return {name: float(run.is_good[rows].mean()) for name, rows in run.tenant.groups()}


def fairness(run: Run) -> float | None:
    """Jain's index of the tenants' shares served in time; see `jain`."""
    return jain(list(good_shares(run).values()))


def jain(values: Sequence[float]) -> float | None:
    """How even shares are: 1 is even, 1/n one takes all. None for one, or where all are 0.

    Jain, Chiu, Hawe 1984: (sum x)^2 / (n sum x^2).
    """
    shares = np.array(values)
    if len(shares) < 2 or not shares.any():
        return None
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))
