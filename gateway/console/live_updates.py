"""Server-sent events of the console: changes of the overview, and new points of the charts.

At most four events a second per browser; a stream ends when the gateway drains, so that the browser
connects to another one, or again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from gateway.console.overview import Overview, RowWindow
from gateway.request_task import Shutdown
from registry.errors import RegistryUnavailable
from registry.redis.autoscaler_log import AutoscalerLog

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
            feed = OverviewFeed(self.shown, viewer, window)
            self._feeds[viewer, window] = feed
        return feed

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
