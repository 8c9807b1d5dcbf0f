"""`pilotlight autoscaler`: what it has done, and with `--dry-run` what it would do now, and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from autoscaler.loading.loading_policies import LOADING_POLICIES
from autoscaler.planning.actions import Demote, DrainPod, Load, SetPods
from autoscaler.planning.pool_view import Limits
from autoscaler.scaling.limits import pool_problems
from autoscaler.service.loop import Autoscaler
from autoscaler.service.metrics import AutoscalerMetrics
from autoscaler.service.settings import AutoscalerSettings
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.platform.settings import AutoscalerChoice
from registry.domain.action_log import record_document
from registry.domain.model import name_of_key
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.watch import ClusterWatch

if TYPE_CHECKING:
    from autoscaler.planning.actions import Action
    from autoscaler.service.loop import TickPlan
    from pilotlight.commands.target import PlatformTarget
    from pilotlight.output import Output
    from registry.domain.action_log import ActionRecord
    from registry.redis.client import Registry

LOADING_NAMES = ", ".join(LOADING_POLICIES)
_SYNC_S = 10.0


def autoscaler_choice(
    loading: str, *, pods: int, min_pods: int | None, pod_idle_s: float, pod_stable_s: float
) -> AutoscalerChoice:
    """The choice that the flags of `up` make; raises InvalidInput with all that is wrong."""
    problems = _loading_problems(loading)
    if min_pods is not None:
        problems += pool_problems(Limits(min_pods, pods))
    if problems:
        raise InvalidInput(problems)
    return AutoscalerChoice(loading, min_pods, pod_idle_s, pod_stable_s)


def _loading_problems(loading: str) -> list[str]:
    if loading in LOADING_POLICIES:
        return []
    return [f"--loading must be one of {LOADING_NAMES}, was {loading!r}"]


async def explain_plans(
    target: PlatformTarget, output: Output, loading: str, *, dry_run: bool, explain: bool
) -> None:
    """Print the last actions, or a plan that is made and not carried out."""
    if problems := _loading_problems(loading):
        raise InvalidInput(problems)
    async with target.registry() as registry:
        if dry_run:
            plan = await plan_once(registry, loading)
            _tell_plan(output, plan, explain=explain)
        else:
            _tell_done(output, (await AutoscalerLog(registry).records()).history)


async def plan_once(registry: Registry, loading: str) -> TickPlan:
    """What an autoscaler would do now, from the state and counts of the registry."""
    watch = ClusterWatch(registry)
    settings = AutoscalerSettings(redis_url=registry.url, pool=registry.pool, loading=loading)
    planner = Autoscaler(
        settings, watch, AutoscalerLog(registry), LOADING_POLICIES[loading](),
        AutoscalerMetrics(), "dry-run",
    )  # fmt: skip
    follower = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(_SYNC_S):
            await watch.wait_synced()
            await planner.plan()
            await planner.wait_forecast()
            return await planner.plan()
    except TimeoutError as error:
        raise RequestFailed(f"the registry could not be read within {_SYNC_S:g} s") from error
    finally:
        follower.cancel()


def _tell_plan(output: Output, plan: TickPlan, *, explain: bool) -> None:
    actions = [action_document(each) for each in plan.actions]
    models = model_documents(plan) if explain else []
    if output.as_json:
        output.result({"actions": actions, "models": models, "refused": plan.refused})
        return
    if actions:
        output.table(
            ("ACTION", "MODEL", "POD", "TIER", "REASON", "WHY"),
            [
                (each["verb"], each["model"], each["pod"], each["tier"], each["reason"],
                 each["words"])
                for each in actions
            ],
        )  # fmt: skip
    else:
        output.note("nothing is to be done now")
    if explain:
        output.table(
            ("MODEL", "WARM", "WAITING", "LAST REQUEST", "P(60 S)", "EXPECTED (60 S)", "REFUSED"),
            [
                (each["model"], str(each["warm"]), str(each["waiting"]),
                 "never" if each["idle_s"] is None else f"{each['idle_s']:.0f} s ago",
                 _number(each["p_minute"]), _number(each["mean_minute"]), each["refused"])
                for each in models
            ],
        )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def action_document(action: Action) -> dict[str, Any]:
    """One planned action as JSON."""
    verb, model, pod, tier = "", "", "", ""
    match action:
        case Load(key=key, pod=pod, tier=tier):
            verb, model = "load", str(name_of_key(key))
        case Demote(key=key, pod=pod, tier=tier):
            verb, model = "demote", str(name_of_key(key))
        case SetPods(pods=pods):
            verb = f"have {pods} pods"
        case DrainPod(pod=pod):
            verb = "drain"
    return {
        "verb": verb, "model": model, "pod": pod, "tier": str(tier),
        "reason": str(action.why), "words": action.words,
    }  # fmt: skip


def model_documents(plan: TickPlan) -> list[dict[str, Any]]:
    """What the plan rests on, per model."""
    view, documents = plan.view, []
    for row, model in enumerate(view.models):
        demand = view.demand
        idle_s = view.time_s - model.last_arrival_s
        column = 1  # the window of a minute
        documents.append(
            {
                "model": str(model.spec.name),
                "warm": sum(each.is_warm for each in model.holders.values()),
                "waiting": model.waiting.requests,
                "idle_s": idle_s if idle_s < float("inf") else None,
                "p_minute": None if demand is None else float(demand.p_minute[row]),
                "mean_minute": None if demand is None else float(demand.forecast.mean[row, column]),
                "refused": plan.refused.get(model.key, ""),
            }
        )
    return documents


def _tell_done(output: Output, history: tuple[ActionRecord, ...]) -> None:
    if output.as_json:
        output.result([record_document(each) for each in history])
        return
    if not history:
        output.note("the autoscaler has done nothing yet; see what it would: --dry-run --explain")
        return
    output.table(
        ("ACTION", "OF", "POD", "TIER", "REASON", "WHY", "OUTCOME"),
        [
            (each.verb, each.subject, each.pod or "-", each.tier or "-", each.reason, each.detail,
             f"{each.outcome} {each.error}".strip())
            for each in history
        ],
    )  # fmt: skip
