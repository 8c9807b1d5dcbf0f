"""Keeps a pool's placement: when to plan, planning in a thread, adopting plans, executing them.

The record in the registry is all of its state that counts: another leader continues from it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final

from autoscaler.metrics import AutoscalerMetrics
from autoscaler.placement import planner_of
from autoscaler.placement.placed_pods import (
    PlannedFor,
    has_arrived,
    latency_scales,
    next_step,
    planned_for,
    should_adopt,
    should_replan,
    without_rate,
)
from autoscaler.placement.placement_input import (
    PlacementInput,
    empty_record,
    expected_rates,
    find_accelerators,
    latency_ratios,
    moving_cost,
    new_record,
    placement_input,
    with_scales,
)
from autoscaler.placement.plan import Placement
from autoscaler.placement.prediction import Predictor
from autoscaler.placement.problem import InvalidPlacementInput, PlanParams
from autoscaler.policy import PoolView
from autoscaler.settings import AutoscalerSettings
from registry.domain.cluster import ClusterState
from registry.domain.model import PlacementName
from registry.domain.records import (
    POOL,
    ActionOutcome,
    ActionRecord,
    PlacedReplica,
    PlacementRecord,
)
from registry.redis.reports import AutoscalerLog

logger = logging.getLogger(__name__)

_NICENESS: Final = 10
"""Of the thread that plans: seconds of a core that pods compute on."""
_CHECK_INTERVAL_S: Final = 2.0
"""Between two looks at the forecast, which changes no faster."""
_FAILURE_PAUSE_S: Final = 30.0
_RESTART_GRACE_S: Final = 60.0
"""On a cluster: how long an accelerator may be without pods, which start anew for their places."""
_MIN_PAUSE_RATIO: Final = 5.0
"""Minimum pause after a plan, as a multiple of the CPU time that it took."""


Planned = tuple[Placement, float]
"""A plan, and the responses in time per second that it gains over the replicas that run now."""


def plan_and_compare(
    planner: str, inputs: PlacementInput, current: Sequence[PlacedReplica], params: PlanParams
) -> Planned:
    """Raises InvalidPlacementInput, and PluginError."""
    placement = planner_of(planner)(
        inputs.workloads, inputs.accelerators, inputs.profiles, current, params
    )
    gain_rps = predicted_rps(inputs, placement.replicas, params)
    gain_rps -= predicted_rps(inputs, current, params)
    return replace(placement, planner=planner), gain_rps


def predicted_rps(
    inputs: PlacementInput, replicas: Sequence[PlacedReplica], params: PlanParams
) -> float:
    """Responses in time per second, of the replicas that have a profile."""
    rates = {each.model: each.rate_rps for each in inputs.workloads}
    predictor = Predictor(inputs.workloads, inputs.kinds, inputs.profiles, params)
    in_time = predictor.in_time(inputs.known(replicas))
    return sum(rates[model] * part for model, part in in_time.items())


def _in_thread(plan: Callable[[], Planned]) -> Future[tuple[Planned, float]]:
    """The plan and the CPU seconds that it takes, by a thread that ends with the process."""
    result: Future[tuple[Planned, float]] = Future()

    def run() -> None:
        os.nice(_NICENESS)  # of this thread only, on Linux
        try:
            result.set_result((plan(), time.thread_time()))
        except Exception as error:  # shown where the plan is adopted
            result.set_exception(error)

    threading.Thread(target=run, name="placement", daemon=True).start()
    return result


class PlacementService:
    """The placement of one pool. Used by one task only; the caller leads."""

    def __init__(
        self, settings: AutoscalerSettings, log: AutoscalerLog, metrics: AutoscalerMetrics
    ) -> None:
        self._planner = settings.placement
        self._cores = settings.accelerator_names
        self._restart_grace_s = _RESTART_GRACE_S if settings.kubernetes else 0.0
        self._pace = settings.pace
        self._log = log
        self._metrics = metrics
        self._planning: Future[tuple[Planned, float]] | None = None
        self._planned_input: PlacementInput | None = None
        self._planning_reason = ""
        self._scales: dict[str, float] = {}
        """Of the latencies that the plan in progress is made with."""
        self._next_check_s = 0.0
        self._planned_for: PlannedFor | None = None
        self._cold_since_s: dict[str, float] = {}
        self._missing_since_s: float | None = None

    def start_over(self) -> None:
        """Forget what was seen: while another led, pods may have been warm and plans made.

        A plan in progress comes to nothing; the next one begins after it.
        """
        self._planned_input = self._planned_for = self._missing_since_s = None
        self._cold_since_s = {}

    async def tick(
        self, state: ClusterState, view: PoolView, recent_rps: Mapping[str, float], token: int
    ) -> None:
        """Plan if due, adopt a finished plan, make the next moves. Raises RegistryUnavailable."""
        now_s = view.time_s
        record = state.placement
        if self._planner == PlacementName.OFF:
            if record is not None and (record.pods or record.target):
                await self._log.set_placement(token, empty_record(record, now_s))
            return
        if record is not None:
            self._update_cold(record, state, now_s)
            if self._is_restarting(record, state, now_s):
                return
        names = [str(each.spec.name) for each in view.models]
        rates = expected_rates(view.demand, names, recent_rps)
        rates = {model: rate * self._pace for model, rate in rates.items()}
        scales = record.latency_scales if record else {}
        inputs = placement_input(state, rates, self._cores, scales)
        if self._planning is not None and self._planning.done():
            await self._adopt(record, now_s, token)
            return
        if self._planning is None and time.monotonic() >= self._next_check_s:
            self._next_check_s = time.monotonic() + _CHECK_INTERVAL_S
            ratios = self._latency_ratios(record, state, inputs, now_s)
            if view.demand is not None and (reason := self._reason(record, inputs, ratios, now_s)):
                self._scales = latency_scales(scales, ratios)
                inputs = placement_input(state, rates, self._cores, self._scales)
                self._start(record, inputs, reason)
        if record is not None:
            await self._move(record, state, inputs, now_s, token)

    def _latency_ratios(
        self,
        record: PlacementRecord | None,
        state: ClusterState,
        inputs: PlacementInput,
        now_s: float,
    ) -> dict[str, float]:
        """Measured over predicted latencies; none while copies move, which changes neighbours."""
        if record is None or self._cold_since_s or not has_arrived(record):
            return {}
        return latency_ratios(state, record, inputs, now_s / self._pace)

    def _reason(
        self,
        record: PlacementRecord | None,
        inputs: PlacementInput,
        ratios: Mapping[str, float],
        now_s: float,
    ) -> str:
        """Why to plan anew; empty: the plan holds."""
        if record is None or record.planner != self._planner:
            has_load = any(each.rate_rps > 0 for each in inputs.workloads)
            return "first plan" if has_load and inputs.accelerators else ""
        known = self._planned_for or _planned_for(record)
        self._planned_for, reason = should_replan(known, inputs, ratios, now_s)
        return reason if inputs.accelerators else ""

    def _start(self, record: PlacementRecord | None, inputs: PlacementInput, reason: str) -> None:
        current = tuple(without_rate(pod.replica) for pod in record.pods) if record else ()
        params = PlanParams(overhead_s=inputs.overhead_s)
        self._planned_input, self._planning_reason = inputs, reason
        plan = partial(plan_and_compare, self._planner, inputs, current, params)
        self._planning = _in_thread(plan)

    async def _adopt(self, record: PlacementRecord | None, now_s: float, token: int) -> None:
        """Record the finished plan as the target, if it is worth its moves."""
        planning, inputs = self._planning, self._planned_input
        assert planning is not None
        self._planning = None
        if inputs is None:
            return  # since its start another may have led
        try:
            (placement, gain_rps), took_s = planning.result()
        except Exception as error:  # a planner's error must not stop the loading of models
            self._note_failure(error)
            return
        self._metrics.placement_seconds.observe(took_s)
        self._next_check_s = time.monotonic() + max(_CHECK_INTERVAL_S, _MIN_PAUSE_RATIO * took_s)
        known = {each.model for each in inputs.workloads}
        is_stale = record is None or not {pod.replica.model for pod in record.pods} <= known
        cost = moving_cost(record, placement, inputs)
        if not is_stale and not should_adopt(gain_rps, cost):
            self._metrics.placements.labels("kept").inc()
            logger.info(
                "placement kept",
                extra={"reason": self._planning_reason, "gain_rps": gain_rps, "moving_cost": cost},
            )
            if record is not None and record.latency_scales != self._scales:
                await self._log.set_placement(token, with_scales(record, self._scales))
            self._planned_for = planned_for(inputs)
            return
        placed = new_record(record, placement, inputs, self._planning_reason, now_s, self._scales)
        detail = (
            f"{self._planning_reason}: {len(placed.target)} replicas, expected "
            f"{placement.total_rps:.1f} req/s in time, {gain_rps:+.1f}"
        )
        action = ActionRecord(
            "place", POOL, str(self._planner), detail, now_s, outcome=ActionOutcome.DONE
        )
        if await self._log.set_placement(token, placed, action):  # else it is planned again
            self._planned_for = planned_for(inputs)
            self._metrics.placements.labels("adopted").inc()
            logger.info("placement adopted", extra={"words": detail})

    def _note_failure(self, error: Exception) -> None:
        """The last plan serves on; planning is tried again after a pause."""
        self._next_check_s = time.monotonic() + _FAILURE_PAUSE_S
        if isinstance(error, InvalidPlacementInput):
            self._metrics.failures.labels("placement-input").inc()
            logger.warning("no placement can be planned", extra={"problems": error.problems})
        else:
            self._metrics.failures.labels("planner").inc()
            logger.error("a planner failed; the last plan serves on", exc_info=error)

    async def _move(
        self,
        record: PlacementRecord,
        state: ClusterState,
        inputs: PlacementInput,
        now_s: float,
        token: int,
    ) -> None:
        if not inputs.accelerators or (has_arrived(record) and not self._cold_since_s):
            return
        costs = {each.model: each.rate_rps * inputs.load_s[each.model] for each in inputs.workloads}
        after = next_step(
            record, self._cold_since_s, inputs.accelerators, inputs.profiles, costs, now_s
        )
        if after == record:
            return
        if after.reason != record.reason:
            logger.warning("placement changed", extra={"words": after.reason})
        await self._log.set_placement(token, after)

    def _update_cold(self, record: PlacementRecord, state: ClusterState, now_s: float) -> None:
        """Since when placed pods have not held their model."""
        names = {pod.info.place: name for name, pod in state.pods.items()}
        cold = {
            each.name
            for each in record.pods
            if not is_warm(state, names.get(each.name, ""), each.replica.model)
        }
        self._cold_since_s = {name: self._cold_since_s.get(name, now_s) for name in cold}

    def _is_restarting(self, record: PlacementRecord, state: ClusterState, now_s: float) -> bool:
        """Whether a planned accelerator's pods may come back: nothing is decided until then."""
        found = {each.name for each in find_accelerators(state, self._cores)}
        if set(record.accelerators) <= found:
            self._missing_since_s = None
        elif self._missing_since_s is None:
            self._missing_since_s = now_s
        since_s = self._missing_since_s
        return since_s is not None and now_s - since_s < self._restart_grace_s


def is_warm(state: ClusterState, pod: str, model: str) -> bool:
    """Whether requests for the model can be sent to its placed pod now."""
    found = state.pods.get(pod)
    return (
        found is not None
        and found.is_accepting
        and any(
            key.rpartition("@")[0] == model and each.is_warm
            for key, each in state.residency.on_device(pod).items()
        )
    )


def _planned_for(record: PlacementRecord) -> PlannedFor:
    return PlannedFor(
        {each.model: each.rate_rps for each in record.models if each.slo_s},
        {each.model: each.slo_s for each in record.models if each.slo_s},
        frozenset(record.accelerators),
    )
