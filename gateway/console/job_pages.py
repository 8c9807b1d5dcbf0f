"""Pages that start commands: what if, and the autoscaler's plan. For operators only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.console.autoscaler_plan import TITLE as PLAN
from gateway.console.autoscaler_plan import plan_job
from gateway.console.what_if import (
    LOADING,
    MAX_PODS_CHANGE,
    POLICIES,
    Change,
    compared,
    replayed,
    what_if_job,
)
from gateway.console.what_if import TITLE as WHAT_IF

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.console.command_runs import CommandRuns, Job
    from gateway.telemetry.recent_requests import RecentRequests
    from registry.redis.watch import ClusterWatch

_TITLES: Final = (WHAT_IF, PLAN)
_PODS: Final = tuple(map(str, range(-MAX_PODS_CHANGE, MAX_PODS_CHANGE + 1)))


@dataclass(frozen=True, slots=True)
class JobSources:
    """What jobs read, and who runs them."""

    watch: ClusterWatch
    recent: RecentRequests
    commands: CommandRuns


def job_routes(render: Callable[..., Response], sources: JobSources) -> APIRouter:
    router = APIRouter()
    commands = sources.commands

    @router.get("/what-if")
    async def what_if(request: Request) -> Response:
        _require_operator(request)
        job = commands.latest(WHAT_IF)
        return render(
            request, "what-if", job=job, now_s=time.time(),
            rows=[] if job is None else compared(job),
            change=Change() if job is None else job.context["change"],
            waiting=len(replayed(sources.recent, sources.watch, time.time())),
            policies=POLICIES, loading=LOADING, may_run=commands.is_enabled,
            pods=range(-MAX_PODS_CHANGE, MAX_PODS_CHANGE + 1),
        )  # fmt: skip

    @router.post("/what-if")
    async def start_what_if(request: Request) -> Response:
        _require_sender(request, commands)
        change = _change(request)
        requests = replayed(sources.recent, sources.watch, time.time())
        if not requests:
            raise HTTPException(409, "this gateway had no request in the last ten minutes")
        return _started(commands, what_if_job(requests, sources.watch, change))

    @router.post("/autoscaler")
    async def start_plan(request: Request) -> Response:
        _require_sender(request, commands)
        loading = request.query_params.get("loading", LOADING[0])
        _require_one_of("loading", loading, LOADING[:-1])
        return _started(commands, plan_job(sources.watch.registry, loading))

    @router.get("/jobs/{title}")
    async def progress(request: Request, title: str) -> Response:
        _require_operator(request)
        return JSONResponse(_job(commands, title).progress(time.time()))

    @router.delete("/jobs/{title}")
    async def cancel(request: Request, title: str) -> Response:
        _require_sender(request, commands)
        _job(commands, title)
        return JSONResponse({"cancelled": commands.cancel(title)})

    return router


def _job(commands: CommandRuns, title: str) -> Job:
    job = commands.latest(title) if title in _TITLES else None
    if job is None:
        raise HTTPException(404, f"{title!r} was not started at this gateway")
    return job


def _started(commands: CommandRuns, job: Job) -> Response:
    if not commands.start(job):
        raise HTTPException(409, "another job runs: wait for its end, or cancel it")
    return JSONResponse(job.progress(time.time()), 202)


def _change(request: Request) -> Change:
    given, default = request.query_params, Change()
    policy = given.get("policy", default.policy)
    loading = given.get("loading", default.loading)
    pods = given.get("pods", "0")
    _require_one_of("policy", policy, POLICIES)
    _require_one_of("loading", loading, LOADING)
    _require_one_of("pods", pods, _PODS)
    return Change(policy, loading, int(pods))


def _require_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise HTTPException(400, f"{name} must be one of {', '.join(allowed)}, was {value!r}")


def _require_operator(request: Request) -> None:
    if request.scope["pilotlight.viewer"] is not None:
        raise HTTPException(403, "it shows every tenant's models: it is for operators only")


def _require_sender(request: Request, commands: CommandRuns) -> None:
    """An operator, at a page of this gateway: other sites' pages may send requests as well."""
    _require_operator(request)
    if not commands.is_enabled:
        raise HTTPException(403, "the console starts no commands here (--console-commands)")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        raise HTTPException(403, "a page of another site may not start commands")
