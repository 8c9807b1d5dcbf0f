"""What one machine does over time: the data of figures 6.3 and 6.12 of Blinowski et al. 2024.

Loads are read from the registry, so that those of the scheduler are included, which no request
waits for.
"""

import numpy as np
import pyarrow as pa

from load.report.pod_usage import PodUsage, TimeSpans, union
from registry.domain.model import Tier, name_of_key


class ResidencyLog:
    """When each model was loading and loaded on one pod."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._changes: dict[str, list[tuple[float, bool, bool]]] = {}
        """By key: time, whether it is loading, whether it is loaded."""

    def add(self, pod: str, key: str, tier: Tier, loading: Tier | None, now_s: float) -> None:
        if pod == self._pod:
            change = now_s, loading is not None, tier is Tier.DEVICE
            self._changes.setdefault(key, []).append(change)

    def usages(self, rows: pa.Table, end_s: float) -> list[PodUsage]:
        """By model; `rows` are the run's records."""
        of_pod = rows.filter(np.array(rows["predict_pod"].to_pylist()) == self._pod)
        models = np.array(of_pod["model"].to_pylist())
        # A request holds its machine from its dispatch to its response.
        begins = of_pod["scheduled_s"].to_numpy() + of_pod["queue_ms"].to_numpy() / 1000
        ends = of_pod["finished_s"].to_numpy()
        found = []
        for key, changes in sorted(self._changes.items()):
            name = name_of_key(key).name
            is_model = models == name
            loading = [(time_s, is_on) for time_s, is_on, _ in changes]
            loaded = [(time_s, is_on) for time_s, _, is_on in changes]
            found.append(
                PodUsage(
                    self._pod, name,
                    loading=_spans(loading, end_s),
                    inferring=union(begins[is_model], ends[is_model]),
                    loaded=_spans(loaded, end_s),
                )
            )  # fmt: skip
        return found


def _spans(changes: list[tuple[float, bool]], end_s: float) -> TimeSpans:
    begins: list[float] = []
    ends: list[float] = []
    for time_s, is_on in changes:
        is_open = len(begins) > len(ends)
        if is_on and not is_open:
            begins.append(time_s)
        elif is_open and not is_on:
            ends.append(time_s)
    if len(begins) > len(ends):
        ends.append(end_s)
    return TimeSpans(np.array(begins), np.array(ends))
