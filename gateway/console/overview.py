"""The overview as a document (pods, a window of the models, totals) and the console's live updates.

A viewer is a namespace, whose models alone are shown, or None for operators, who see everything.
Updates are server-sent events, of changes and of new points of charts: four a second per browser at
most. A stream ends when the gateway drains, so that the browser connects to another one, or again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from gateway.console import duration
from gateway.console.traffic import LastMinute, Traffic
from gateway.management import places, pod_document, traffic_document, traffic_text
from gateway.request_task import Shutdown
from gateway.routing.route_request import can_be_served
from registry.domain.canaries import Canaries
from registry.domain.cluster import ClusterState
from registry.domain.demand import Band
from registry.domain.model import ModelName, ModelRecord, Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from registry.domain.records import ActionOutcome, ActionRecord
from registry.errors import RegistryUnavailable
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch

MAX_ROWS: Final = 100
MAX_PODS: Final = 64
"""Columns; further pods are counted."""
_STEPS: Final = 20
"""Shares of loads are rounded to so many steps: every change is sent to every browser."""


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Which models are shown."""

    offset: int = 0
    limit: int = 30
    search: str = ""
    """Part of the name."""
    by_rate: bool = False
    """Models with the most requests first, in place of names in order."""


@dataclass(eq=False)
class Overview:
    """Reads one gateway's copy of the cluster and its counters."""

    watch: ClusterWatch
    traffic: Traffic
    queued_total: Callable[[], int]
    last_minute: LastMinute
    _preloads: dict[str, dict[str, str]] = field(default_factory=dict, init=False)
    """Reasons of the autoscaler's latest loads, by model and pod."""

    def __post_init__(self) -> None:
        self._names = lru_cache(MAX_ROWS)(self._sorted_names)
        self._canaries = Canaries(self.watch.state)

    def set_actions(self, history: Sequence[ActionRecord]) -> None:
        """Take over the autoscaler's actions, newest first."""
        self._preloads = {}
        for action in history:
            if action.verb == "load" and action.outcome != ActionOutcome.FAILED:
                reasons = self._preloads.setdefault(action.subject, {})
                reasons.setdefault(action.pod, action.reason)

    def document(self, viewer: str | None, window: RowWindow) -> dict[str, Any]:
        """`totals`, `pods` and `rows`, of which `order` has the names."""
        state, rates = self.watch.state, self.traffic.rates()
        names = self._matching(viewer, window.search)
        shown = self._busiest_first(viewer, window, rates) if window.by_rate else names
        end = window.offset + window.limit
        chosen = [state.models.get(name) for name in islice(shown, window.offset, end)]
        records = [record for record in chosen if record is not None]
        pods = self._visible_pods(viewer)
        return {
            "totals": self._totals(viewer, models=len(names), pods=len(pods)),
            "pods": {pod.name: _pod(pod, viewer) for pod in pods[:MAX_PODS]},
            "rows": {str(record.spec.name): self._row(record, rates) for record in records},
            "order": [str(record.spec.name) for record in records],
        }

    def _busiest_first(
        self, viewer: str | None, window: RowWindow, rates: Mapping[str, float]
    ) -> Iterator[ModelName]:
        """Those with requests first; few have any, so that the others need no sorting."""
        names, known = self._matching(viewer, window.search), self.watch.state.models
        by_rate = sorted(rates, key=lambda each: (-rates[each], each))
        busy = [
            name
            for label in by_rate
            if window.search in label
            and (name := ModelName.parse(label)) in known
            and viewer in (None, name.namespace)
        ]
        seen = set(busy)
        return chain(busy, (name for name in names if name not in seen))

    def _matching(self, viewer: str | None, search: str) -> list[ModelName]:
        """Names in order; kept until the models change."""
        return self._names(viewer, search, self.watch.state.models_version)

    def _sorted_names(self, viewer: str | None, search: str, version: int) -> list[ModelName]:
        del version
        models = self.watch.state.models
        return sorted(
            name for name in models if viewer in (None, name.namespace) and search in str(name)
        )

    def _visible_pods(self, viewer: str | None) -> list[PodState]:
        """By node, accelerator and name; for a tenant those that have a model of its own."""
        state = self.watch.state
        pods = list(state.pods.values())
        if viewer is not None:
            held = (pods for key, pods in state.residency.items() if key.startswith(f"{viewer}/"))
            own = set[str]().union(*held)
            pods = [pod for pod in pods if pod.name in own]
        return sorted(pods, key=lambda pod: (pod.node, pod.info.accelerator.product, pod.name))

    def _row(self, record: ModelRecord, rates: Mapping[str, float]) -> dict[str, Any]:
        state, spec, name = self.watch.state, record.serving, str(record.spec.name)
        now_s = self.watch.registry_now_s()
        holders, preloads = state.holders(spec.key), self._preloads.get(name, {})
        cells, traffic = places(holders), self._canaries.traffic(record.spec)
        return {
            "cells": cells,
            "why": {
                pod: reason
                for pod, reason in preloads.items()
                if pod in cells and (holders[pod].is_warm or holders[pod].is_warming)
            },
            "loads": {
                pod: progress
                for pod, residency in holders.items()
                if pod in state.pods
                and (progress := _load_progress(spec.key, state.pods[pod], residency, now_s))
            },
            "ready": can_be_served(record, state),
            "pinned": spec.policy.pin,
            "traffic": traffic_text(traffic_document(traffic)) if traffic.is_split else "",
            "failure": "" if record.failure is None else str(record.failure.reason),
            "rps": round(rates.get(name, 0.0), 1),
            "expected_rps": round(_expected(state, spec.key, now_s).mean_per_s, 2),
            "queued": state.queue_depths.get(spec.key, 0),
        }

    def _totals(self, viewer: str | None, *, models: int, pods: int) -> dict[str, Any]:
        p50_s, p99_s = (self.last_minute.percentile_s(part, viewer) for part in (0.5, 0.99))
        history = self.traffic.history(viewer, after_s=time.time() - 60)
        latest = history[-10:]
        age_s = self.watch.age_s()
        totals = {
            "models": models,
            "pods": pods,
            "rps": round(sum(each[1] for each in latest) / max(len(latest), 1), 1),
            "cold": sum(each[2] for each in history),
            "failed": sum(each[3] for each in history),
            "missed": self.last_minute.missed(viewer),
            "p50_ms": None if p50_s is None else round(p50_s * 1000, 1),
            "p99_ms": None if p99_s is None else round(p99_s * 1000, 1),
            "age_s": int(min(age_s, 1e9)),
        }
        if viewer is None:
            totals["queued"] = self.queued_total()
        return totals


def _expected(state: ClusterState, key: str, now_s: float) -> Band:
    """The forecast; of an autoscaler that publishes none, the rate of the next request."""
    rates = state.expected_rates
    found = rates.bands_at(now_s).get(key)
    return found or Band(rates.at(now_s).get(key, 0.0), median_per_s=0.0, high_per_s=0.0)


def _pod(pod: PodState, viewer: str | None) -> dict[str, Any]:
    shown = pod_document(pod)
    document = {
        "node": shown["node"],
        "accelerator": shown["accelerator"]["product"] or "CPU",
        "phase": shown["phase"],
    }
    if viewer is None:
        used = shown["used_bytes"]
        document |= {
            "slots": shown["slots"],
            "busy": pod.slots_busy,
            "memory_bytes": shown["memory_bytes"],
            **{
                f"{tier}_bytes": int(used.get(tier, 0))
                for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK)
            },
        }
    return document


def present_level(watch: ClusterWatch, label: str) -> tuple[int, float, float, float]:
    """The present `Level` of the model with this label, without its time."""
    state, now_s = watch.state, watch.registry_now_s()
    record = state.models.get(ModelName.parse(label))
    if record is None:
        return 0, 0.0, 0.0, 0.0
    key = record.serving.key
    copies = sum(each.is_warm for each in state.holders(key).values())
    return copies, *_expected(state, key, now_s)


def _load_progress(
    key: str, pod: PodState, residency: Residency, now_s: float
) -> dict[str, Any] | None:
    """`share` (0 to 1) and `text` of a load in progress; None without one.

    By the time that loads from its tier took before; `share` is None where none was measured.
    """
    if residency.loading_from is None:
        return None
    whole = pod.estimates[key].load_from(residency.loading_from, pod.info.link_bytes_per_s)
    elapsed_s = max(now_s - residency.since_s, 0.0)
    if not whole.is_measured:
        return {"share": None, "text": f"for {int(elapsed_s)} s"}
    share = int(_STEPS * elapsed_s / max(whole.seconds, 1e-6)) / _STEPS
    if share >= 1:
        late = f"late: {int(elapsed_s)} s of about {duration(whole.seconds)}"
        return {"share": 1.0, "text": late}
    return {"share": share, "text": f"{share:.0%} of about {duration(whole.seconds)}"}


ACTIONS_INTERVAL_S: Final = 5.0
"""Between two reads of the autoscaler's actions, while a browser watches."""
MAX_STREAMS: Final = 64
"""Browsers at once; a page that is refused still shows what it was rendered with."""
MAX_STREAMS_OF_TENANT: Final = 16
"""Of one tenant, so that none takes all."""
MIN_INTERVAL_S: Final = 0.25


Seen = tuple[int, float]
"""What a browser has: a version of the document, and the time of the last point of the chart."""
NOTHING: Final[Seen] = (0, 0.0)


@dataclass(eq=False)
class OverviewFeed:
    """Events of one viewer and window, shared by browsers; a version lasts `MIN_INTERVAL_S`."""

    overview: Overview
    viewer: str | None
    window: RowWindow
    clock: Callable[[], float] = time.monotonic
    _made_s: float = field(default=-MIN_INTERVAL_S, init=False)
    _version: int = field(default=0, init=False)
    _parts: dict[str, tuple[int, bytes]] = field(default_factory=dict, init=False)
    """Of the document: each as JSON, with the version in which it changed last."""

    def next_event(self, seen: Seen) -> tuple[bytes, Seen]:
        """The parts that have changed for a browser that has `seen`, and what it has then."""
        if self.clock() - self._made_s >= MIN_INTERVAL_S:
            self._made_s = self.clock()
            self._version += 1
            for name, part in self.overview.document(self.viewer, self.window).items():
                content = orjson.dumps(part)
                if self._parts.get(name, (0, b""))[1] != content:
                    self._parts[name] = self._version, content
        version, last_point_s = seen
        delta = {
            name: orjson.Fragment(content)
            for name, (changed_in, content) in self._parts.items()
            if changed_in > version
        }
        if points := self.overview.traffic.history(self.viewer, after_s=last_point_s):
            last_point_s = points[-1][0]
            delta["points"] = orjson.Fragment(orjson.dumps(points))
        return event(delta), (self._version, last_point_s)


def event(delta: dict[str, Any]) -> bytes:
    """One server-sent event; without changes a comment, by which a gone browser is noticed."""
    return b"data: " + orjson.dumps(delta) + b"\n\n" if delta else b":\n\n"


@dataclass(eq=False)
class LiveUpdates:
    shown: Overview
    log: AutoscalerLog
    shutdown: Shutdown
    _actions_read_s: float = field(default=-ACTIONS_INTERVAL_S, init=False)
    _open: Counter[str | None] = field(default_factory=Counter, init=False)
    """Streams by viewer."""
    _feeds: WeakValueDictionary[tuple[str | None, RowWindow], OverviewFeed] = field(
        default_factory=WeakValueDictionary, init=False
    )
    """Shared by the browsers that watch the same; each goes with the last one."""

    def is_full(self, viewer: str | None) -> bool:
        """Whether this viewer (None: an operator) may open no further stream."""
        if viewer is not None and self._open[viewer] >= MAX_STREAMS_OF_TENANT:
            return True
        return self._open.total() >= MAX_STREAMS

    async def overview(self, viewer: str | None, window: RowWindow) -> AsyncIterator[bytes]:
        """The whole document first, then what changes."""
        made = OverviewFeed(self.shown, viewer, window)
        feed, seen = self._feeds.setdefault((viewer, window), made), NOTHING
        async with aclosing(self._ticks(viewer)) as ticks:
            async for _ in ticks:
                await self._read_actions()
                changed, seen = feed.next_event(seen)
                yield changed

    async def _read_actions(self) -> None:
        """Every few seconds, once for all browsers; nothing while Redis is away."""
        if time.monotonic() - self._actions_read_s < ACTIONS_INTERVAL_S:
            return
        self._actions_read_s = time.monotonic()
        with suppress(RegistryUnavailable):
            self.shown.set_actions((await self.log.records()).history)

    async def model(self, viewer: str | None, model: str) -> AsyncIterator[bytes]:
        """Points of the charts of one model."""
        last_s = 0.0
        async with aclosing(self._ticks(viewer)) as ticks:
            async for _ in ticks:
                points = self.shown.traffic.history(viewer, model, after_s=last_s)
                levels = [tuple(each) for each in self.shown.traffic.levels(model, after_s=last_s)]
                if points:
                    last_s = points[-1][0]
                yield event({"points": points, "levels": levels} if points else {})

    async def _ticks(self, viewer: str | None) -> AsyncGenerator[None, None]:
        self._open[viewer] += 1
        try:
            while not self.shutdown.has_begun:
                yield
                await asyncio.sleep(MIN_INTERVAL_S)
        finally:
            self._open[viewer] -= 1
            if not self._open[viewer]:
                del self._open[viewer]
