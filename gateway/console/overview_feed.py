"""Events of the overview, made once for all browsers that watch the same part of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.console.overview import changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.console.overview import Overview, RowWindow
    from gateway.console.traffic import Traffic

MIN_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What a browser has."""

    document: dict[str, Any] = field(default_factory=dict)
    last_point_s: float = 0.0


NOTHING: Final = Shown()


class OverviewFeed:
    """Of one viewer and window; a version lasts `MIN_INTERVAL_S`."""

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
