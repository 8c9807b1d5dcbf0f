"""First step of a tick: the pool as it is now, in one view."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from autoscaler.forecasting.counts import Counts, ObservedDemand
from autoscaler.policy import NEVER_S, CopyUse, Limits, ModelView, PoolView
from registry.domain.cluster import ClusterState
from registry.domain.demand import ArrivalCount, CountWindow, QueueStats
from registry.domain.estimates import PRIORS
from registry.domain.model import ModelName, ModelRecord, Tier
from registry.domain.pod import CopyReport
from registry.domain.pod_index import Residency
from registry.domain.records import ActionRecord
from registry.redis.client import Registry
from registry.redis.reports import ArrivalHints, ArrivalLog, AutoscalerLog, read_copy_reports
from registry.redis.watch import ClusterWatch

REREAD_S: Final = 30
"""How far back each read goes, for late reports of gateways."""
_DAY_S: Final = 86_400
_SECONDS_KEPT_S: Final = 300


class Observer:
    """Reads one pool, and counts its arrivals. Used by one task only."""

    def __init__(self, watch: ClusterWatch, log: AutoscalerLog, arrivals: ObservedDemand) -> None:
        self._watch = watch
        self._log = log
        self._arrivals = arrivals
        self._queues = ArrivalLog(watch.registry)
        self._hints = ArrivalHints(watch.registry)
        self._reader = DemandReader(watch.registry, arrivals)

    async def observe(
        self, now_s: float, *, limits: Limits | None, paused: Collection[str]
    ) -> PoolView:
        """Without the demand, which is forecast next. Raises RegistryUnavailable."""
        counting = asyncio.create_task(self._reader.read(now_s, sorted(self._watch.state.models)))
        try:
            ongoing, waiting, reports, hints, _ = await asyncio.gather(
                self._log.ongoing(),
                self._queues.queue_stats(),
                read_copy_reports(self._watch.registry),
                self._hints.read(),
                counting,
            )
        finally:  # where another read failed, it would add its counts in the middle of later ticks
            counting.cancel()
        state = self._watch.state
        return read_pool(
            state,
            now_s,
            arrived=self._arrivals.take_arrived(),
            last_arrival_s=self._arrivals.last_arrival_s,
            waiting=waiting,
            uses=copy_uses(state, reports),
            ongoing=ongoing.actions,
            time_scale=self._arrivals.time_scale,
            limits=limits or Limits(),
            paused=paused,
            hints=hints,
            wanted=ongoing.wanted,
        )


class DemandReader:
    """Adds what it reads to the observed demand of one pool. Used by one task only."""

    def __init__(self, registry: Registry, observed: ObservedDemand) -> None:
        self._arrivals = ArrivalLog(registry)
        self._observed = observed
        self._added: dict[int, dict[ModelName, int]] = {}
        """Counts that were added already, by second and model, for the last seconds."""
        self._read_at_s: float | None = None

    async def read(self, now_s: float, models: Sequence[ModelName]) -> None:
        """Add new counts. Raises RegistryUnavailable, without any change."""
        if self._read_at_s is None or abs(now_s - self._read_at_s) > _SECONDS_KEPT_S:
            await self._read_all(now_s, models)
        else:
            since_s = min(now_s, self._read_at_s) - REREAD_S
            seconds = await self._arrivals.read(CountWindow.SECOND, since_s, now_s)
            self._observed.set_models(models, now_s)
            self._observed.add(self._not_added(seconds), length_s=1.0)
        self._read_at_s = now_s
        oldest_s = now_s - 2 * REREAD_S
        self._added = {at_s: added for at_s, added in self._added.items() if at_s >= oldest_s}

    async def _read_all(self, now_s: float, models: Sequence[ModelName]) -> None:
        """Read two weeks: seconds of the last minutes, minutes of two days, ten minutes before."""
        seconds_from_s = (now_s - _SECONDS_KEPT_S) // 60 * 60
        minutes_from_s = (now_s - 2 * _DAY_S) // 600 * 600 + 600
        ten_minutes = await self._arrivals.read(
            CountWindow.TEN_MINUTES, now_s - 14 * _DAY_S, minutes_from_s - 600
        )
        minutes = await self._arrivals.read(CountWindow.MINUTE, minutes_from_s, seconds_from_s - 60)
        seconds = await self._arrivals.read(CountWindow.SECOND, seconds_from_s, now_s)
        self._observed.reset(Counts())
        self._observed.set_models(models, now_s)
        for window, length_s in ((ten_minutes, 600.0), (minutes, 60.0)):
            counts = [(each.model, float(each.start_s), each.count) for each in window]
            self._observed.add(counts, length_s=length_s, is_new=False)
        self._added = {}
        self._observed.add(self._not_added(seconds), length_s=1.0, is_new=False)

    def _not_added(self, seconds: Sequence[ArrivalCount]) -> list[tuple[ModelName, float, int]]:
        """The counts that earlier reads of these seconds did not return."""
        new = []
        for item in seconds:
            added = self._added.setdefault(item.start_s, {})
            count = item.count - added.get(item.model, 0)
            if count > 0:
                added[item.model] = item.count
                new.append((item.model, float(item.start_s), count))
        return new


_SOURCES: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


def read_pool(
    state: ClusterState,
    now_s: float,
    *,
    arrived: Mapping[ModelName, int] = _NOTHING,
    last_arrival_s: Mapping[ModelName, float] = _NOTHING,
    waiting: Mapping[ModelName, QueueStats] = _NOTHING,
    uses: Mapping[str, Mapping[str, CopyUse]] = _NOTHING,
    size_bytes: Mapping[str, int] = _NOTHING,
    ongoing: Sequence[ActionRecord] = (),
    time_scale: float = 1.0,
    **of_view: Any,
) -> PoolView:
    """The pool at `now_s`; models are in the order of names. Use it before `state` changes.

    Beside the registry's state: arrivals since the last plan, the use of copies by key and pod, the
    size by key where it is known before the first load, actions that pods may not report yet, and
    fields of the view.

    `time_scale`: of replays of compressed traces. At sixty times the pace, loads, inferences and
    gaps between arrivals are sixty times as short. Policies have constants for real time, so that
    all times of the view are on a clock that is faster by this factor.
    """
    link_bytes_per_s = min(
        (each.info.link_bytes_per_s for each in state.pods.values() if each.info.link_bytes_per_s),
        default=None,
    )

    def view_of(name: ModelName, record: ModelRecord) -> ModelView:
        spec, failure = record.serving, record.failure
        holders, measured = state.holders(spec.key), state.measured(spec.key)
        known_bytes = (  # on a device an engine takes far more than its files
            size_bytes.get(spec.key)
            or state.residency.device_bytes.get(spec.key)
            or max((h.size_bytes for h in holders.values() if h.tier is not Tier.REMOTE), default=0)
        )
        return ModelView(
            spec=spec,
            size_bytes=known_bytes or int(PRIORS.load_bytes),
            infer_s=measured.stages.share_s,
            hold_s=measured.stages.hold_s,
            load_s={tier: measured.load_from(tier, link_bytes_per_s).seconds for tier in _SOURCES},
            holders=holders,
            uses=uses.get(spec.key, {}),
            arrived=arrived.get(name, 0),
            last_arrival_s=last_arrival_s.get(name, NEVER_S),
            waiting=waiting.get(name, QueueStats()),
            failure=failure if failure is not None and failure.key == spec.key else None,
        )

    served = sorted(each for each in state.models.items() if not each[1].spec.is_stopped)
    models = tuple(view_of(*each) for each in served)
    models = _with_ongoing_loads(models, state, ongoing, now_s)
    if time_scale != 1:
        now_s, models = time_scale * now_s, tuple(_scaled(each, time_scale) for each in models)
    return PoolView(now_s, dict(sorted(state.pods.items())), models, **of_view)


def _with_ongoing_loads(
    models: tuple[ModelView, ...],
    state: ClusterState,
    ongoing: Sequence[ActionRecord],
    now_s: float,
) -> tuple[ModelView, ...]:
    """With the loads that were started and that their pods do not report yet."""
    loading: dict[str, list[str]] = {}
    for record in ongoing:
        if record.verb == "load" and record.tier == Tier.DEVICE and record.pod in state.pods:
            loading.setdefault(record.subject, []).append(record.pod)
    if not loading:
        return models

    def with_loads(model: ModelView) -> ModelView:
        known = model.holders
        new = {
            pod: Residency(Tier.REMOTE, Tier.REMOTE, now_s, 0)
            for pod in loading.get(str(model.spec.name), ())
            if pod not in known or not (known[pod].is_warm or known[pod].is_warming)
        }
        return replace(model, holders={**known, **new}) if new else model

    return tuple(with_loads(model) for model in models)


def _scaled(model: ModelView, factor: float) -> ModelView:
    failure, waiting = model.failure, model.waiting
    return replace(
        model,
        infer_s=factor * model.infer_s,
        hold_s=factor * model.hold_s,
        load_s={tier: factor * seconds for tier, seconds in model.load_s.items()},
        holders={
            pod: replace(each, since_s=factor * each.since_s) for pod, each in model.holders.items()
        },
        uses={pod: replace(each, last_s=factor * each.last_s) for pod, each in model.uses.items()},
        last_arrival_s=factor * model.last_arrival_s,
        waiting=replace(waiting, oldest_s=factor * waiting.oldest_s),
        failure=failure and replace(failure, retry_at_s=factor * failure.retry_at_s),
    )


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
