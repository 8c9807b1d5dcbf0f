"""Time of one request by stage, as the gateway measures it and the pod reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gateway.http.headers import PodResponse


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
        reported_ms = self.load_ms + self.preprocess_ms + self.infer_ms + self.postprocess_ms
        return max(0.0, self.pod_ms - reported_ms)

    def server_timing(self) -> bytes:
        return (
            f"queue;dur={self.queue_ms:.3f}, load;dur={self.load_ms:.3f}, "
            f"preprocess;dur={self.preprocess_ms:.3f}, infer;dur={self.infer_ms:.3f}, "
            f"postprocess;dur={self.postprocess_ms:.3f}, network;dur={self.network_ms:.3f}"
        ).encode()


def stage_timings(queue_s: float, pod_s: float, response: PodResponse) -> StageTimings:
    """Timings by the gateway's clock and the pod's `server-timing`."""
    reported = (response.stages_ms or {}).get
    return StageTimings(
        queue_s * 1000,
        pod_s * 1000,
        reported("load", 0.0),
        reported("preprocess", 0.0),
        reported("infer", 0.0),
        reported("postprocess", 0.0),
    )
