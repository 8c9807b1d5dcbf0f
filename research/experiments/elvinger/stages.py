"""Where the time of simulated requests goes, batch by batch (Elvinger 2024, section 6.2.1).

A pod computes one batch at a time: what is left of a request's time at the pod after its batch was
built, and after the batch before has ended, is its inference.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from research.routing.batch_round_robin import MAX_BUILD_S

Row: TypeAlias = "dict[str, Any]"
"""One request, with the columns of `RECORD_SCHEMA`."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Times of one model's requests in s, of equal length; batches in the order of their ends."""

    transfer_s: tuple[float, ...]
    build_s: tuple[float, ...]
    """Until the batch is full, or has waited long enough."""
    queue_s: tuple[float, ...]
    """From then until the pod is free."""
    inference_s: tuple[float, ...]
    total_s: tuple[float, ...]
    batches: tuple[tuple[float, int], ...]
    """Ends, and sizes."""

    def p95_s(self) -> dict[str, float]:
        """By stage; these do not add up to the 95th percentile of the total."""
        return {
            name: float(np.percentile(getattr(self, f"{name}_s"), 95)) if self.total_s else 0.0
            for name in ("transfer", "build", "queue", "inference", "total")
        }


def stages_of(rows: Sequence[Row], batch_sizes: Mapping[str, int], since_s: float = 0.0) -> Stages:
    """Of one model's served requests that were sent since then, and their batches.

    `rows` are all that were served, since batches are found from them; `batch_sizes`: by the pods.
    """
    by_pod: defaultdict[str, defaultdict[float, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_pod[str(row["predict_pod"])][row["finished_s"]].append(row)
    times: list[tuple[float, ...]] = []
    batches: list[tuple[float, int]] = []
    for pod, ends in by_pod.items():
        free_s = 0.0
        for finished_s in sorted(ends):
            members = ends[finished_s]
            end_s = finished_s - members[0]["postprocess_ms"] / 1000
            arrived = [end_s - each["infer_ms"] / 1000 for each in members]
            is_full = len(members) >= batch_sizes[pod]
            built_s = max(arrived) if is_full else min(min(arrived) + MAX_BUILD_S, end_s)
            start_s = min(max(built_s, free_s), end_s)
            free_s = end_s
            counted = [
                (
                    each["preprocess_ms"] / 1000,
                    max(0.0, built_s - at_s),
                    start_s - built_s,
                    end_s - start_s,
                    finished_s - each["scheduled_s"],
                )
                for each, at_s in zip(members, arrived, strict=True)
                if each["scheduled_s"] >= since_s
            ]
            times += counted
            if counted:
                batches.append((finished_s, len(members)))
    transfer, build, queue, inference, total = zip(*times, strict=True) if times else ((),) * 5
    return Stages(transfer, build, queue, inference, total, tuple(sorted(batches)))
