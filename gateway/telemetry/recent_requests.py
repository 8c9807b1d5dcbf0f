"""The latest requests of this gateway: times by stage and outcomes, and the failures in its log."""

import logging
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import orjson

from gateway.telemetry.explanations import Explanations, duration, find_explanation
from registry.domain.pod import Stage

logger = logging.getLogger(__name__)

MAX_REQUESTS: Final = 4096
INTERVAL_S: Final = 60.0
"""At most one line in this time for failures of one model, status and reason."""
MAX_KINDS: Final = 1000
MAX_MESSAGE: Final = 500


_REPORTED: Final = b"load;dur=%.3f, preprocess;dur=%.3f, infer;dur=%.3f, postprocess;dur=%.3f"
_TIMING: Final = b"queue;dur=%.3f, %b, network;dur=%.3f"


class StageTimings(NamedTuple):
    """Time of one request by stage, in milliseconds."""

    queue_ms: float
    pod_ms: float
    """From the first byte sent to the pod to the head of its response."""
    load_ms: float
    preprocess_ms: float
    infer_ms: float
    postprocess_ms: float

    @property
    def network_ms(self) -> float:
        """The part of `pod_ms` that the pod does not report."""
        return max(0.0, self.pod_ms - sum(self[2:]))

    def server_timing(self, reported: bytes = b"") -> bytes:
        """As text; `reported`: the stages of the pod, as it wrote them, if that is known."""
        queue_ms, pod_ms, load_ms, preprocess_ms, infer_ms, postprocess_ms = self
        network_ms = pod_ms - load_ms - preprocess_ms - infer_ms - postprocess_ms
        if not reported:
            reported = _REPORTED % (load_ms, preprocess_ms, infer_ms, postprocess_ms)
        return _TIMING % (queue_ms, reported, network_ms if network_ms > 0.0 else 0.0)


class RecentRequest(NamedTuple):
    """A request that ended, or whose response began."""

    id: str
    at_s: float
    """Unix time."""
    model: str
    policy: str
    reason: str
    start: str
    """`warm`, or the tier that it waited for; empty if no pod responded."""
    status: int
    pod: str = ""
    timings: StageTimings | None = None
    expected_s: float | None = None
    """Forecast of the routing decision, if it was measured."""
    error: str = ""
    """The message of an error's response."""
    failed_after_s: float = 0.0
    """If no pod responded."""

    @property
    def namespace(self) -> str:
        return self.model.partition("/")[0]

    @property
    def took_s(self) -> float:
        timings = self.timings
        return self.failed_after_s if timings is None else (timings.queue_ms + timings.pod_ms) / 1e3

    def failure_text(self) -> str:
        """Such as `failed after 1.6 s: 503 load-failed: MESSAGE`; empty for a success."""
        if self.status < HTTPStatus.BAD_REQUEST:
            return ""
        after = f" after {duration(self.took_s)}" if self.took_s else ""
        return f"failed{after}: {self.status} {self.reason}: {self.error or 'without a message'}"

    def outcome(self) -> dict[str, Any]:
        """The response as JSON, for an explanation."""
        return {
            "status": self.status,
            "reason": self.reason,
            "took_s": round(self.took_s, 6),
            "error": self.error or None,
        }

    def stages_ms(self) -> list[tuple[str, float]]:
        """Milliseconds of each stage, in the order in which a request passes them."""
        timings = self.timings
        if timings is None:
            return []
        return [
            (Stage.QUEUE, timings.queue_ms),
            (Stage.NETWORK, timings.network_ms),
            (Stage.LOAD, timings.load_ms),
            (Stage.PREPROCESS, timings.preprocess_ms),
            (Stage.INFER, timings.infer_ms),
            (Stage.POSTPROCESS, timings.postprocess_ms),
        ]


class RecentRequests:
    def __init__(self) -> None:
        self._requests: deque[RecentRequest] = deque(maxlen=MAX_REQUESTS)
        self.total = 0
        """Requests recorded since the start, also those that were dropped."""

    def add(self, request: RecentRequest) -> None:
        self._requests.append(request)
        self.total += 1

    def newest_first(self) -> Iterator[RecentRequest]:
        return reversed(self._requests)

    def find(
        self, request_id: str, namespaces: Collection[str] | None = None
    ) -> RecentRequest | None:
        """The latest one with this id, of a model of these namespaces; None: of any."""
        found = (each for each in self.newest_first() if each.id == request_id)
        return next(
            (each for each in found if namespaces is None or each.namespace in namespaces), None
        )


def explain_request(
    explanations: Sequence[Explanations],
    recent: RecentRequests,
    request_id: str,
    namespaces: Collection[str] | None = None,
) -> dict[str, Any] | None:
    """The decision and the outcome of a request as JSON; None if both are unknown.

    Of models of these namespaces only; None: of all.
    """
    decided = find_explanation(explanations, request_id, namespaces)
    ended = recent.find(request_id, namespaces)
    if ended is None:
        return decided or None
    document = decided or {
        "request_id": request_id,
        "gateway": explanations[0].gateway,
        "model": ended.model,
        "policy": ended.policy,
        "summary": "",
    }
    texts = (ended.failure_text(), document.get("summary", ""))
    summary = "; decided: ".join(text for text in texts if text)
    return {**document, "summary": summary, "outcome": ended.outcome()}


class FailureLog:
    """Logs responses with a status of 500 or more, of which there may be thousands a second.

    The first of each kind, and how many followed it.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int, str], list[float]] = {}
        """Unix time of the last line and the failures since then, the oldest kind first."""

    def log(self, request: RecentRequest) -> None:
        kind = (request.model, request.status, request.reason)
        last_s, unlogged = self._kinds.get(kind, (0.0, 0))
        if 0 <= request.at_s - last_s < INTERVAL_S:
            self._kinds[kind][1] += 1
            return
        self._kinds.pop(kind, None)
        if len(self._kinds) >= MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = [request.at_s, 0]
        logger.warning(
            "request failed",
            extra={
                "request_id": request.id,
                "model": request.model,
                "status": request.status,
                "reason": request.reason,
                "pod": request.pod,
                "error": request.error,
                "unlogged": int(unlogged),
            },
        )


def error_message(body: bytes) -> str:
    """The text of an error's response in KServe's or OpenAI's form; else the text as it is."""
    if not body:
        return ""
    try:
        error = orjson.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return str(text)[:MAX_MESSAGE]
