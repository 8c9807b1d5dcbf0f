"""Server-sent events of the console: changes of the overview, and new points of the charts.

At most four events a second per browser; a stream ends when the gateway drains, so that the browser
connects to another one, or again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from gateway.console.overview import Overview, RowWindow, changes
from gateway.console.traffic import Traffic
from registry.errors import RegistryUnavailable
from registry.redis.autoscaler_log import AutoscalerLog

ACTIONS_INTERVAL_S: Final = 5.0
"""Between two reads of the autoscaler's actions, while a browser watches."""
MAX_STREAMS: Final = 64
"""Browsers at once; a page that is refused still shows what it was rendered with."""
MAX_STREAMS_OF_TENANT: Final = 16
"""Of one tenant, so that none takes all."""
MIN_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What a browser has."""

    document: dict[str, Any] = field(default_factory=dict)
    last_point_s: float = 0.0


NOTHING: Final = Shown()


class OverviewFeed:
    """Events of one viewer and window, shared by browsers; a version lasts `MIN_INTERVAL_S`."""

    def __init__(
        self,
        overview: Overview,
        traffic: Traffic,
        viewer: str | None,
        window: RowWindow,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._overview = overview
        self._traffic = traffic
        self._viewer = viewer
        self._window = window
        self._clock = clock
        self._made_s = -MIN_INTERVAL_S
        self._before = self._latest = NOTHING
        self._event = event({})

    def next_event(self, seen: Shown) -> tuple[bytes, Shown]:
        """What a browser that has `seen` needs for the latest version, and that version."""
        if self._clock() - self._made_s >= MIN_INTERVAL_S:
            self._made_s = self._clock()
            document = self._overview.document(self._viewer, self._window)
            self._before = self._latest
            self._event, self._latest = self._changes(self._before, document)
        if seen is self._latest:
            return event({}), seen
        if seen is self._before:
            return self._event, self._latest
        return self._changes(seen, self._latest.document)

    def _changes(self, seen: Shown, document: dict[str, Any]) -> tuple[bytes, Shown]:
        delta, last_point_s = changes(seen.document, document), seen.last_point_s
        points = self._traffic.history(self._viewer, after_s=last_point_s)
        if points:
            last_point_s, delta["points"] = points[-1][0], points
        return event(delta), Shown(document, last_point_s)


def event(delta: dict[str, Any]) -> bytes:
    """One server-sent event; without changes a comment, by which a gone browser is noticed."""
    return b"data: " + orjson.dumps(delta) + b"\n\n" if delta else b":\n\n"


class LiveUpdates:
    def __init__(
        self,
        overview: Overview,
        traffic: Traffic,
        log: AutoscalerLog,
        is_draining: Callable[[], bool],
    ) -> None:
        self._overview = overview
        self._log = log
        self._actions_read_s = -ACTIONS_INTERVAL_S
        self._traffic = traffic
        self._is_draining = is_draining
        self._open: Counter[str | None] = Counter()
        """Streams by viewer."""
        self._feeds: WeakValueDictionary[tuple[str | None, RowWindow], OverviewFeed] = (
            WeakValueDictionary()
        )

    def is_full(self, viewer: str | None) -> bool:
        """Whether this viewer (None: an operator) may open no further stream."""
        if viewer is not None and self._open[viewer] >= MAX_STREAMS_OF_TENANT:
            return True
        return self._open.total() >= MAX_STREAMS

    async def overview(self, viewer: str | None, window: RowWindow) -> AsyncIterator[bytes]:
        """The whole document first, then what changes."""
        feed, seen = self._feed(viewer, window), NOTHING
        async with aclosing(self._ticks(viewer)) as ticks:
            async for _ in ticks:
                await self._read_actions()
                changed, seen = feed.next_event(seen)
                yield changed

    def _feed(self, viewer: str | None, window: RowWindow) -> OverviewFeed:
        """Shared by the browsers that watch the same; it goes with the last one."""
        feed = self._feeds.get((viewer, window))
        if feed is None:
            feed = OverviewFeed(self._overview, self._traffic, viewer, window)
            self._feeds[viewer, window] = feed
        return feed

    async def _read_actions(self) -> None:
        """Every few seconds, once for all browsers; nothing while Redis is away."""
        if time.monotonic() - self._actions_read_s < ACTIONS_INTERVAL_S:
            return
        self._actions_read_s = time.monotonic()
        with suppress(RegistryUnavailable):
            self._overview.set_actions((await self._log.records()).history)

    async def model(self, viewer: str | None, model: str) -> AsyncIterator[bytes]:
        """Points of the charts of one model."""
        last_s = 0.0
        async with aclosing(self._ticks(viewer)) as ticks:
            async for _ in ticks:
                points = self._traffic.history(viewer, model, after_s=last_s)
                levels = [tuple(each) for each in self._traffic.levels(model, after_s=last_s)]
                if points:
                    last_s = points[-1][0]
                yield event({"points": points, "levels": levels} if points else {})

    async def _ticks(self, viewer: str | None) -> AsyncGenerator[None, None]:
        self._open[viewer] += 1
        try:
            while not self._is_draining():
                yield
                await asyncio.sleep(MIN_INTERVAL_S)
        finally:
            self._open[viewer] -= 1
            if not self._open[viewer]:
                del self._open[viewer]
