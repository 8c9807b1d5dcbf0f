"""The loading policies by the name they have in settings, metrics and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autoscaler.loading.baseline import baseline
from autoscaler.loading.clockwork import clockwork
from autoscaler.loading.greedy_dual import greedy_dual
from autoscaler.loading.hybrid_histogram import hybrid_histogram
from autoscaler.loading.keep_alive import keep_alive
from autoscaler.loading.predictive import predictive
from autoscaler.loading.round_robin import round_robin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.planning.policy import LoadingPolicy

LOADING_POLICIES: Final[Mapping[str, Callable[[], LoadingPolicy[Any]]]] = {
    "predictive": predictive,
    "keep-alive": keep_alive,
    "greedy-dual": greedy_dual,
    "hybrid-histogram": hybrid_histogram,
    "baseline": baseline,
    "round-robin": round_robin,
    "clockwork": clockwork,
}
"""Each with its default parameters."""
