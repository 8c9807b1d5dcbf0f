"""Use of the pool's copies from what pods report, for `Observations.uses`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoscaler.planning.pool_view import NEVER_S, CopyUse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.cluster import ClusterState
    from registry.domain.pod import CopyReport


def copy_uses(
    state: ClusterState, reports: Mapping[str, tuple[float, Mapping[str, CopyReport]]]
) -> dict[str, dict[str, CopyUse]]:
    """By model key, then pod: the use of every warm copy at the pods that report it.

    `reports` are by pod, with the registry's time of each. A copy that was loaded after its pod's
    report has not been used.
    """
    uses: dict[str, dict[str, CopyUse]] = {}
    for key, holders in state.residency.items():
        for pod, residency in holders.items():
            if not residency.is_warm or pod not in reports:
                continue
            at_s, copies = reports[pod]
            report = copies.get(key) if at_s >= residency.since_s else None
            uses.setdefault(key, {})[pod] = CopyUse() if report is None else _use(report, at_s)
    return uses


def _use(report: CopyReport, at_s: float) -> CopyUse:
    last_s = NEVER_S if report.idle_s is None else at_s - report.idle_s
    return CopyUse(report.ongoing, last_s, report.served)
