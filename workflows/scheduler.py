"""One scheduler: accepts runs, owns them by leases, resumes those of schedulers that are gone."""

import asyncio
import hashlib
import logging
import math
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from common.pod_secret import PodSecret
from common.tls import PartTls
from registry.domain.graph import KIND as GRAPH
from registry.domain.model import ModelName
from registry.errors import RegistryUnavailable
from registry.redis.reports import ArrivalHints
from registry.redis.watch import ClusterWatch
from registry.redis.workflow_log import TakenRun, WorkflowLog
from workflows.deployments import Deployments, argument_problems
from workflows.errors import WorkflowError
from workflows.journal import LEASE_S, Journal, KnowledgeStore, adopt_result, resumed_run, run_of
from workflows.metrics import SchedulerMetrics
from workflows.plan.planner import Planner
from workflows.predict import request_features
from workflows.preloads import Preloads
from workflows.run import Run, RunStatus, is_run_of
from workflows.run_control import RunControl
from workflows.settings import SchedulerSettings
from workflows.steps import Steps

logger = logging.getLogger(__name__)

MAX_RUNS: Final = 1024
"""Under way at once: each has a task and its values in memory; further ones get 429."""
KEPT_RUNS_S: Final = 3600.0
"""Time for which an ended run can be read, by clients that lost its response."""
STORE_INTERVAL_S: Final = 10.0
"""Between writes of what predictions are made of: a scheduler that dies loses so much of it."""
HINTS_INTERVAL_S: Final = 1.0
HINTS_TTL_S: Final = 5.0
"""Time for which an autoscaler believes a scheduler that may be gone."""
KEPT_IN_MEMORY: Final = 512
"""Ended runs, for those who ask soon."""


class Scheduler:
    """Owned by the event loop. `group` owns its tasks."""

    def __init__(
        self,
        settings: SchedulerSettings,
        watch: ClusterWatch,
        group: asyncio.TaskGroup,
        secret: PodSecret,
        metrics: SchedulerMetrics,
        tls: PartTls | None = None,
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._group = group
        self._metrics = metrics
        self.log = WorkflowLog(watch.registry)
        self._hints = ArrivalHints(watch.registry)
        self._owner = uuid.uuid4().hex[:12]
        self._runs: dict[str, Run] = {}
        """Under way, and the latest ones that ended."""
        self._active: dict[str, Run] = {}
        self._beginning = 0
        """Runs that are not under way yet, and count already."""
        self._unrecorded: dict[str, Run] = {}
        """Ended while the registry did not answer: it is told with the next renewals."""
        self._preloads = Preloads(group, secret, metrics, watch.registry_now_s, tls)
        self.planner = Planner(watch, self._preloads, metrics)
        self._knowledge = KnowledgeStore(self.log, self.planner.knowledge, watch.registry_now_s)
        self._journal = Journal(self.log, self._lose)
        self._steps = Steps(settings, self.planner, secret, tls)
        self._control = RunControl(
            group,
            self._steps,
            self.planner,
            self._journal,
            metrics,
            send=lambda run, message: self.deployments.send(run, message),
            on_end=self._on_end,
        )
        self.deployments = Deployments(
            settings,
            group,
            self.log,
            on_message=self._control.on_message,
            on_stopped=self._stop_run,
            on_resumed=lambda _: metrics.resumptions.labels("runner").inc(),
        )
        self.is_draining = False

    @property
    def is_ready(self) -> bool:
        return self._watch.age_s() != math.inf and not self.is_draining

    def close(self) -> None:
        self.deployments.stop()
        self._steps.close()
        self._preloads.close()

    # Requests

    async def begin_graph(
        self,
        name: ModelName,
        body: str,
        *,
        deadline_s: float | None = None,
        scheduling: str | None = None,
    ) -> Run:
        """As `begin`, for a graph, whose run has a status and a body as its result."""
        deployment = await self.deployments.find(name)
        if deployment.definition["kind"] != GRAPH:
            raise WorkflowError(
                f"{name} is no InferenceGraph; a workflow is run by POST /v1/workflows/"
                f"{name.name}:run",
                "workflow-not-found",
            )
        return await self.begin(name, {"body": body}, deadline_s=deadline_s, scheduling=scheduling)

    async def begin(
        self,
        name: ModelName,
        arguments: Mapping[str, Any],
        *,
        deadline_s: float | None = None,
        scheduling: str | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Begin a run, or find the one that the key has begun.

        Raises WorkflowError, RegistryUnavailable.
        """
        if not self.is_ready:
            raise WorkflowError(
                "the scheduler has not read the registry yet, or shuts down", "not-ready"
            )
        deployment = await self.deployments.find(name)
        problems = argument_problems(deployment.definition["parameters"], arguments)
        if problems:
            raise WorkflowError("; ".join(problems))
        now_s = self.planner.now_s()
        limit_s = deadline_s or deployment.definition["deadline_s"] or self._settings.run_timeout
        run = Run(
            _identity(name, idempotency_key),
            name,
            arguments,
            now_s,
            now_s + min(limit_s, self._settings.run_timeout),
            scheduling or self._settings.scheduling,
            features=request_features(arguments),
        )
        known = self._runs.get(run.identity)
        if known is not None:
            return known
        under_way = len(self._active) + self._beginning
        if under_way >= MAX_RUNS:
            raise WorkflowError(
                f"{under_way} runs are under way, which is the limit", "too-many-runs"
            )
        self._beginning += 1
        try:
            await self._knowledge.read(name)  # before: who finds the run begun finds it in `_runs`
            token = await self.log.begin_run(run.identity, run.head(), self._owner, lease_s=LEASE_S)
            if token is None:
                return await self._find_or_read(run.identity)
            run.token = token
            self._add(run)
        finally:
            self._beginning -= 1
        self.planner.begin(run)
        try:
            await self.deployments.start_run(deployment, run)
        except WorkflowError as error:
            self._control.fail(run, str(error), error.reason, error.status)
            raise
        return run

    def _add(self, run: Run) -> None:
        self._runs[run.identity] = self._active[run.identity] = run
        self._metrics.active.set(len(self._active))
        run.timer = self._control.deadline_timer(run)

    async def _find_or_read(self, identity: str) -> Run:
        """A run that exists, here or at another scheduler, whose result is awaited then."""
        if identity in self._runs:
            return self._runs[identity]
        record = await self.log.run(identity)
        if record is None:
            raise WorkflowError(
                f"run {identity} ended just now, and its result is gone: ask again", "run-not-found"
            )
        run = run_of(identity, record.head)
        self._group.create_task(self._follow(run))
        return run

    async def _follow(self, run: Run) -> None:
        """Wait for the end of a run that another scheduler executes."""
        await adopt_result(self.log, run, self.planner.now_s(), LEASE_S)
        run.ended.set()
        await run.notify_changed()

    async def outcome(self, name: ModelName, identity: str) -> dict[str, Any]:
        """A run's document. Raises WorkflowError, RegistryUnavailable."""
        run = self._runs.get(identity)
        if (
            run is not None
            and is_run_of(run.workflow, name)
            and (run.status is RunStatus.RUNNING or run.ended.is_set())
        ):  # else it ends, or another scheduler may have taken it over: the log knows
            return run.outcome()
        record = await self.log.run(identity)
        owner = None
        if record is not None:
            owner = ModelName(record.head["namespace"], record.head["workflow"])
        if record is None or owner is None or not is_run_of(owner, name):
            raise WorkflowError(
                f"run {identity!r} of workflow {name} does not exist, or ended long ago",
                "run-not-found",
            )
        if record.result is not None:
            return dict(record.result)
        return {
            "id": identity,
            "workflow": name.name,
            "namespace": name.namespace,
            "status": RunStatus.RUNNING.value,
            "begun_s": record.head["begun_s"],
        }

    async def cancel(self, name: ModelName, identity: str) -> RunStatus:
        """Cancel a run, whoever owns it; returns how it had ended before, else `CANCELLED`.

        Raises WorkflowError, RegistryUnavailable.
        """
        run = self._active.get(identity)
        if run is not None and run.workflow == name:
            self._control.cancel(run)
            return RunStatus.CANCELLED
        status = RunStatus((await self.outcome(name, identity))["status"])
        if status is not RunStatus.RUNNING:
            return status
        await self.log.cancel_run(identity)
        return RunStatus.CANCELLED

    def abandon(self, run: Run) -> None:
        """The client that waited for a run has left."""
        if run.identity in self._active:
            self._control.cancel(run)
        elif run.status is RunStatus.RUNNING:
            self._group.create_task(self._cancel_elsewhere(run.identity))

    async def _cancel_elsewhere(self, identity: str) -> None:
        with suppress(RegistryUnavailable):
            await self.log.cancel_run(identity)

    # The course of runs

    def _on_end(self, run: Run) -> None:
        self._leave(run)
        self._group.create_task(self._end(run))

    def _leave(self, run: Run) -> None:
        """The run is over, or another scheduler executes it."""
        self._active.pop(run.identity, None)
        self._metrics.active.set(len(self._active))
        if run.timer is not None:
            run.timer.cancel()
        self.deployments.forget(run)

    async def _end(self, run: Run) -> None:
        """Record the result before anybody learns of it."""
        if not await self._record(run):
            self._runs.pop(run.identity, None)
            await adopt_result(self.log, run, self.planner.now_s(), LEASE_S)
        run.ended.set()
        await run.notify_changed()
        while len(self._runs) - len(self._active) > KEPT_IN_MEMORY:
            oldest = next(key for key in self._runs if key not in self._active)
            del self._runs[oldest]

    async def _record(self, run: Run) -> bool:
        """Record a run's result, at the latest once the registry answers; False: it is another's.

        Else its end would be known here, and another scheduler would execute it again.
        """
        try:
            is_recorded = await self.log.end_run(
                run.identity, run.token, run.outcome(), kept_s=KEPT_RUNS_S
            )
            is_elsewhere = not is_recorded and await self._is_owned_elsewhere(run.identity)
        except RegistryUnavailable:
            self._unrecorded[run.identity] = run
            return True
        self._unrecorded.pop(run.identity, None)
        return not is_elsewhere

    def _stop_run(self, run: Run) -> None:
        message = "the workflow's file ended its runner twice and is stopped"
        self._control.fail(run, message, "workflow-stopped", 409)

    def _lose(self, identity: str) -> None:
        """The run has another token: that of another scheduler, or a newer one of this."""
        if identity in self._active:
            self._group.create_task(self._check_lost(self._active[identity]))

    async def _check_lost(self, run: Run) -> None:
        """Where another scheduler owns the run, end this one's part of it.

        After a pause longer than its leases a scheduler may have taken over its own runs.
        """
        token = run.token
        try:
            is_lost = await self._is_owned_elsewhere(run.identity)
        except RegistryUnavailable:
            return  # the next renewal finds it
        if is_lost and run.token == token and self._active.get(run.identity) is run:
            logger.warning("run lost to another scheduler", extra={"run": run.identity})
            await self._give_up(run)

    async def _give_up(self, run: Run) -> None:
        """End this scheduler's part of a run; who waits for it here gets another's result."""
        self._control.release(run)
        self._leave(run)
        self._runs.pop(run.identity, None)
        await self._follow(run)

    async def _is_owned_elsewhere(self, identity: str) -> bool:
        """Raises RegistryUnavailable."""
        record = await self.log.run(identity)
        return record is not None and record.owner != self._owner

    # Leases, and what is stored now and then

    async def keep_leases(self) -> None:
        """Renew own leases, take over runs whose owner is gone; until cancelled."""
        interval_s = LEASE_S / 4
        while True:
            await asyncio.sleep(interval_s)
            with suppress(RegistryUnavailable):
                await self._renew()
                if self.is_ready:
                    for taken in await self.log.take_runs(self._owner, lease_s=LEASE_S):
                        self._group.create_task(self._take_over(taken))

    async def _renew(self) -> None:
        for ended in list(self._unrecorded.values()):
            await self._record(ended)
        tokens = {run.identity: run.token for run in self._active.values()}
        if not tokens:
            return
        lost = await self.log.renew_runs(tokens, lease_s=LEASE_S)
        for identity in lost:
            run = self._active.get(identity)
            if run is None or run.token != tokens[identity]:
                continue
            is_begun = await self.log.run(identity) is None and await self._journal.begin_again(
                run, self._owner, lease_s=LEASE_S
            )
            if not is_begun:
                self._lose(identity)
        for run in [each for each in self._active.values() if each.has_gap]:
            await self._journal.write_again(run)
        for identity in await self.log.cancelled_runs(list(self._active)):
            if identity in self._active:
                self._control.cancel(self._active[identity])

    async def _take_over(self, taken: TakenRun) -> None:
        """Resume a run from its journal."""
        if (ended := self._unrecorded.get(taken.run)) is not None:  # only its end was not heard
            ended.token = taken.token
            await self._record(ended)
            return
        run = resumed_run(taken)
        active = self._active.get(run.identity)
        if active is not None:  # its lease had expired, but this scheduler has it
            active.token = taken.token
            return
        run.features = request_features(run.arguments)
        self._metrics.resumptions.labels("scheduler").inc()
        logger.warning("run taken over", extra={"run": run.identity})
        self._add(run)
        if taken.is_cancelled:
            self._control.cancel(run)
            return
        try:
            deployment = await self.deployments.find(run.workflow)
            await self._knowledge.read(run.workflow)
            if self._active.get(run.identity) is run:  # it has not ended meanwhile
                await self.deployments.start_run(deployment, run)
        except WorkflowError as error:
            self._control.fail(run, str(error), error.reason, error.status)
        except RegistryUnavailable:
            if self._active.get(run.identity) is run:
                await self._give_up(run)  # who finds its lease over takes it

    async def tell_hints(self) -> None:
        """Every second: tell autoscalers what is planned; until cancelled.

        They do not demote models of planned steps then, and load those that many plans expect.
        """
        is_told = False
        while True:
            await asyncio.sleep(HINTS_INTERVAL_S)
            if not self.is_ready:
                continue
            hints = self.planner.hints()
            if hints or is_told:
                with suppress(RegistryUnavailable):
                    await self._hints.put(self._owner, hints, ttl_s=HINTS_TTL_S)
                    is_told = bool(hints)

    async def store_knowledge(self) -> None:
        """Store what has changed, periodically; until cancelled."""
        while True:
            await asyncio.sleep(STORE_INTERVAL_S)
            await self._knowledge.store_changed()


def _identity(name: ModelName, key: str | None) -> str:
    """A run's identity: random, or the same for each use of an idempotency key."""
    if key is None:
        return uuid.uuid4().hex
    return hashlib.sha256(f"{name}\0{key}".encode()).hexdigest()[:32]
