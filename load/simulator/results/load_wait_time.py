"""Time in which requests waited for loads, each load once, as `load/report/loading.py` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class LoadWaitTime:
    """The union of what requests tell of a load, for each pod and model the latest load only."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._latest: dict[tuple[str, str], tuple[float, float]] = {}
        """When the load began and ended."""

    def add(self, cold: pa.RecordBatch) -> None:
        """Rows of `RECORD_SCHEMA` of requests that waited for loads."""
        names = ("predict_pod", "model", "sent_s", "queue_ms", "load_ms")
        columns = (cold.column(name).to_pylist() for name in names)
        for pod, model, sent_s, queue_ms, load_ms in zip(*columns, strict=True):
            if pod is not None and load_ms > 0:
                begin_s = sent_s + queue_ms / 1000
                self._add((pod, model), begin_s, begin_s + load_ms / 1000)

    def _add(self, key: tuple[str, str], begin_s: float, end_s: float) -> None:
        before = self._latest.get(key)
        if before is None or begin_s > before[1] or end_s < before[0]:
            self.total_s += end_s - begin_s
            if before is None or end_s > before[1]:
                self._latest[key] = begin_s, end_s
            return
        whole = min(begin_s, before[0]), max(end_s, before[1])
        self.total_s += (whole[1] - whole[0]) - (before[1] - before[0])
        self._latest[key] = whole
