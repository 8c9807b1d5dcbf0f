"""What if: the last requests of this gateway, simulated as the platform is now and with a change.

Both are simulated by `pilotlight simulate --cluster live`, so that the page compares like with
like, and shows beside them what really happened.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.console.command_runs import Job, Step, registry_environment
from gateway.routing.routing_policies import ROUTING_POLICIES
from registry.domain.model import LoadingPolicyName, ModelName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.telemetry.recent_requests import RecentRequest, RecentRequests
    from registry.redis.watch import ClusterWatch

TITLE: Final = "what-if"
WINDOW_S: Final = 600.0
MAX_PODS_CHANGE: Final = 8
OWN: Final = "own"
"""Each model's own policy."""
NO_LOADING: Final = "none"
POLICIES: Final = (OWN, *map(str, ROUTING_POLICIES))
LOADING: Final = (*map(str, LoadingPolicyName), NO_LOADING)
_TRACE: Final = "trace.csv"


@dataclass(frozen=True, slots=True)
class Change:
    """What differs from the platform as it is."""

    policy: str = OWN
    loading: str = LoadingPolicyName.PREDICTIVE
    """Of both simulations: the registry does not have the running autoscaler's."""
    more_pods: int = 0


def replayed(recent: RecentRequests, watch: ClusterWatch, now_s: float) -> list[RecentRequest]:
    """Requests of the last ten minutes to models that exist, oldest arrival first."""
    models = watch.state.models
    found = []
    for each in recent.newest_first():
        if each.at_s < now_s - WINDOW_S:
            break
        if ModelName.parse(each.model) in models:
            found.append(each)
    return sorted(found, key=_arrival_s)


def _arrival_s(request: RecentRequest) -> float:
    return request.at_s - (_took_s(request) or 0.0)


def _took_s(request: RecentRequest) -> float | None:
    timings = request.timings
    return None if timings is None else (timings.queue_ms + timings.pod_ms) / 1000


def what_if_job(requests: Sequence[RecentRequest], watch: ClusterWatch, change: Change) -> Job:
    """Simulate the requests twice."""
    registry = watch.registry
    common = (
        "simulate", "--cluster", "live", "--trace", f"arrivals:{_TRACE}", "--processes", "1",
        "--allow-unknown", "--loading", change.loading,
    )  # fmt: skip
    changed = ("--policy", change.policy, "--more-pods", str(change.more_pods))
    return Job(
        TITLE,
        [Step("as it is", common), Step("with the change", (*common, *changed))],
        registry_environment(registry),
        {_TRACE: _trace(requests)},
        {"change": change, "happened": _happened(requests)},
    )


def _trace(requests: Sequence[RecentRequest]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("at_s", "tenant", "model"))
    begin_s = _arrival_s(requests[0])
    for each in requests:
        name = ModelName.parse(each.model)
        writer.writerow((f"{_arrival_s(each) - begin_s:.6f}", name.namespace, name.name))
    return text.getvalue().encode()


def _happened(requests: Sequence[RecentRequest]) -> dict[str, Any]:
    times_s = sorted(took_s for each in requests if (took_s := _took_s(each)) is not None)
    starts = Counter(each.start for each in requests)
    return {
        "name": "what happened",
        "requests": len(requests),
        "answered": sum(each.status < 400 for each in requests),
        "cold": sum(count for start, count in starts.items() if start not in ("", "warm")),
        "loads": None,
        "mean_s": sum(times_s) / len(times_s) if times_s else None,
        "p50_s": _quantile(times_s, 0.5),
        "p99_s": _quantile(times_s, 0.99),
    }


def _quantile(ordered: Sequence[float], part: float) -> float | None:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else None


def compared(job: Job) -> list[Mapping[str, Any]]:
    """A row for what happened, and for each simulation that has ended."""
    rows = [job.context["happened"]]
    for step, document in zip(job.steps, job.results, strict=False):
        for run in document["runs"]:
            latency = run["latency_s"]
            rows.append(
                {
                    "name": f"simulated, {step.name}",
                    "requests": run["requests"],
                    "answered": run["ok"],
                    "cold": run["cold_starts"],
                    "loads": sum(run["loads"].values()),
                    "mean_s": latency["mean"],
                    "p50_s": latency["p50"],
                    "p99_s": latency["p99"],
                }
            )
    return rows
