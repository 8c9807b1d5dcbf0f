"""When models were loading, loaded and inferring on each pod, as far as the requests show it.

A request's stages follow one another from when it was sent: queue, load, preprocess, infer. The
times of requests that wait for one load overlap, so a pod's loading time is their union.
"""

from dataclasses import dataclass

import numpy as np

from load.report.aggregates import groups
from load.report.run import Floats, Ints, Run


@dataclass(frozen=True, slots=True)
class TimeSpans:
    """Disjoint spans of time, sorted. Seconds."""

    begins: Floats
    ends: Floats

    @property
    def total_s(self) -> float:
        return float((self.ends - self.begins).sum())


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One model on one pod."""

    pod: str
    model: str
    loading: TimeSpans
    inferring: TimeSpans
    loaded: TimeSpans
    """From the end of a load, or the first use, to the last use before the next load."""


def pod_usages(run: Run) -> list[PodUsage]:
    """Every pair of pod and model that has requests, by pod, then by model."""
    keys = run.predict_pod.codes.astype(np.int64) * len(run.model.names) + run.model.codes
    rows = np.flatnonzero(run.predict_pod.codes >= 0)
    found = [_usage(run, rows[group]) for group in groups(keys[rows])]
    return sorted(found, key=lambda each: (each.pod, each.model))


def loading_s(run: Run) -> float:
    """Seconds in which requests waited for loads, each load once, over all pods.

    Blinowski et al. 2024, figure 5.6. Loads that no request waited for are not included.
    """
    return sum(each.loading.total_s for each in pod_usages(run))


def union(begins: Floats, ends: Floats, *, gap_s: float = 0.0) -> TimeSpans:
    """The union of spans; gaps up to `gap_s` are closed."""
    if not len(begins):
        return TimeSpans(begins, ends)
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    is_new = np.concatenate(([True], begins[1:] > ends[:-1] + gap_s))
    first = np.flatnonzero(is_new)
    last = np.concatenate((first[1:] - 1, [len(begins) - 1]))
    return TimeSpans(begins[first], ends[last])


def _usage(run: Run, rows: Ints) -> PodUsage:
    sent = np.where(np.isnan(run.sent_s[rows]), run.scheduled_s[rows], run.sent_s[rows])
    stage = {
        name: np.nan_to_num(run.stages_ms[name][rows].astype(np.float64)) / 1000
        for name in ("queue", "load", "preprocess", "infer")
    }
    load_begins = sent + stage["queue"]
    load_ends = load_begins + stage["load"]
    infer_begins = load_ends + stage["preprocess"]
    infer_ends = infer_begins + stage["infer"]
    cold = run.is_cold[rows] & (stage["load"] > 0)
    loading = union(load_begins[cold], load_ends[cold])
    used = run.is_ok[rows] | (stage["infer"] > 0)
    infer_begins, infer_ends = infer_begins[used], infer_ends[used]
    return PodUsage(
        pod=run.predict_pod.names[run.predict_pod.codes[rows[0]]],
        model=run.model.names[run.model.codes[rows[0]]],
        loading=loading,
        inferring=union(infer_begins, infer_ends),
        loaded=_loaded(loading, np.sort(infer_begins), np.sort(infer_ends)),
    )


def _loaded(loading: TimeSpans, infer_begins: Floats, infer_ends: Floats) -> TimeSpans:
    """From inferences sorted by begin and by end. Records do not show when a model was evicted."""
    if not len(infer_begins):
        return TimeSpans(loading.ends, loading.ends)
    begins, limits = loading.ends, np.concatenate((loading.begins[1:], [np.inf]))
    if not len(begins) or infer_begins[0] < loading.begins[0]:  # warm before its first load
        begins = np.concatenate((infer_begins[:1], begins))
        limits = np.concatenate((loading.begins, [np.inf]))
    latest = np.searchsorted(infer_ends, limits, side="right") - 1
    last_use = np.where(latest >= 0, infer_ends[np.maximum(latest, 0)], begins)
    return TimeSpans(begins, np.maximum(begins, last_use))
