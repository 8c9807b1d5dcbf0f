"""The console's list of recent requests and its filters, and the page of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.console.model_page import stage_bar

if TYPE_CHECKING:
    from gateway.console.deadlines import MissedDeadlines
    from gateway.telemetry.recent_requests import RecentRequest, RecentRequests

MAX_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Empty fields do not filter."""

    model: str = ""
    """Part of `namespace/name`."""
    only_model: str = ""
    """The whole of it."""
    start: str = ""
    reason: str = ""
    slower_than_ms: float = 0.0
    failed: bool = False
    tenant: str = ""
    """The whole namespace."""
    missed: bool = False
    """After the model's deadline."""

    def matches(self, request: RecentRequest, deadlines: MissedDeadlines) -> bool:
        timings = request.timings
        took_ms = 0.0 if timings is None else timings.queue_ms + timings.pod_ms
        return (
            self.model in request.model
            and self.only_model in ("", request.model)
            and self.start in ("", request.start)
            and self.reason in ("", request.reason)
            and took_ms >= self.slower_than_ms
            and (not self.failed or request.status >= 400)
            and self.tenant in ("", request.model.partition("/")[0])
            and (not self.missed or deadlines.is_missed(request))
        )


def is_visible(request: RecentRequest, viewer: str | None) -> bool:
    return viewer is None or request.model.startswith(f"{viewer}/")


def request_rows(
    recent: RecentRequests,
    deadlines: MissedDeadlines,
    viewer: str | None,
    wanted: RequestFilter,
    limit: int = MAX_SHOWN,
) -> list[dict[str, Any]]:
    """The newest ones that the viewer may see."""
    rows: list[dict[str, Any]] = []
    for request in recent.newest_first():
        if is_visible(request, viewer) and wanted.matches(request, deadlines):
            rows.append(request_row(request))
            if len(rows) >= limit:
                break
    return rows


def request_row(request: RecentRequest) -> dict[str, Any]:
    """Values for the templates; `parts` is the timeline of its stages."""
    timings = request.timings
    row: dict[str, Any] = {**request._asdict(), "took_s": None, "pod_s": None, "parts": []}
    if timings is not None:
        row["took_s"] = (timings.queue_ms + timings.pod_ms) / 1000
        row["pod_s"] = timings.pod_ms / 1000
        row["parts"] = stage_bar([(str(name), ms / 1000) for name, ms in request.stages_ms()])
    return row
