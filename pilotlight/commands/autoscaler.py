"""`autoscaler`: the log of its actions, or with `--dry-run` the plan it would make now."""

import asyncio
from typing import Annotated, Any

import typer

from autoscaler.loading_policies import policy_of
from autoscaler.plan import TickPlan
from autoscaler.policy import Action, Demote, DrainPod, Load, SetPods
from pilotlight.commands import flags
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output, format_age
from registry.domain.model import name_of_key
from registry.domain.policy_names import LOADING
from registry.domain.records import ActionOutcome, ActionRecord, AutoscalerRecords, action_document
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch

LOADING_NAMES = str(LOADING)
_READ_TIMEOUT_S = 10.0
_FORGOTTEN_S = 600.0
"""Age from which an action without an outcome is taken for one whose autoscaler ended."""

app = typer.Typer()


@app.command()
@flags.addresses(*flags.REGISTRY)
async def autoscaler(
    target: PlatformTarget,
    output: Output,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan once and print the actions without doing them.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --dry-run: print each model's demand as well.")
    ] = False,
    loading: Annotated[
        str, typer.Option(help=f"Loading policy to plan with: {LOADING_NAMES}.")
    ] = "predictive",
) -> None:
    """Print the autoscaler's latest actions with reasons; with --dry-run, what it would do now."""
    if problems := loading_problems(loading):
        raise InvalidInput(problems)
    async with target.registry() as registry:
        if dry_run:
            _print_plan(output, await _plan_once(registry, loading), explain=explain)
        else:
            _print_history(output, await AutoscalerLog(registry).records())


def loading_problems(loading: str) -> list[str]:
    if loading in LOADING:
        return []
    return [f"--loading must be one of {LOADING_NAMES}, was {loading!r}"]


async def _plan_once(registry: Registry, loading: str) -> "TickPlan":
    """Plan once, from the registry's present state and arrival counts."""
    # Imported here: the import takes 60 ms, and no other command needs it.
    from autoscaler.loop import Autoscaler
    from autoscaler.metrics import AutoscalerMetrics
    from autoscaler.settings import AutoscalerSettings

    watch = ClusterWatch(registry)
    settings = AutoscalerSettings(redis_url=registry.url, pool=registry.pool, loading=loading)
    planner = Autoscaler(
        settings, watch, AutoscalerLog(registry), policy_of(loading), AutoscalerMetrics(), "dry-run"
    )
    watching = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            await watch.wait_synced()
            await planner.plan()
            await planner.wait_forecast()
            return await planner.plan()
    except TimeoutError as error:
        raise RequestFailed(f"no state from the registry after {_READ_TIMEOUT_S:g} s") from error
    finally:
        watching.cancel()


def _print_plan(output: Output, plan: "TickPlan", *, explain: bool) -> None:
    actions = [_action_document(each) for each in plan.actions]
    models = _model_documents(plan) if explain else []
    if output.as_json:
        output.result({"actions": actions, "models": models, "refused": plan.contradictions})
        return
    if actions:
        output.table(
            ("ACTION", "MODEL", "POD", "TIER", "REASON", "WHY"),
            [
                (
                    each["verb"],
                    each["model"],
                    each["pod"],
                    each["tier"],
                    each["reason"],
                    each["words"],
                )
                for each in actions
            ],
        )
    else:
        output.note("no actions are due now")
    if explain:
        output.table(
            ("MODEL", "WARM", "WAITING", "LAST REQUEST", "P(60 S)", "EXPECTED (60 S)", "REFUSED"),
            [
                (
                    each["model"],
                    str(each["warm"]),
                    str(each["waiting"]),
                    "never" if each["idle_s"] is None else f"{each['idle_s']:.0f} s ago",
                    _number(each["p_minute"]),
                    _number(each["mean_minute"]),
                    each["refused"],
                )
                for each in models
            ],
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _action_document(action: Action) -> dict[str, Any]:
    verb, model, pod, tier = "", "", "", ""
    match action:
        case Load(key=key, pod=pod, tier=tier):
            verb, model = "load", str(name_of_key(key))
        case Demote(key=key, pod=pod, tier=tier):
            verb, model = "demote", str(name_of_key(key))
        case SetPods():
            verb = f"have {action.pods} pods"
        case DrainPod(pod=pod):
            verb = "drain"
    return {
        "verb": verb,
        "model": model,
        "pod": pod,
        "tier": str(tier),
        "reason": str(action.reason),
        "words": action.detail,
    }


def _model_documents(plan: "TickPlan") -> list[dict[str, Any]]:
    """The observations and forecasts behind the plan, per model."""
    view, demand, documents = plan.view, plan.view.demand, []
    for row, model in enumerate(view.models):
        idle_s = view.time_s - model.last_arrival_s
        document: dict[str, Any] = {
            "model": str(model.spec.name),
            "warm": sum(each.is_warm for each in model.holders.values()),
            "waiting": model.waiting.requests,
            "idle_s": idle_s if idle_s < float("inf") else None,
            **dict.fromkeys(("p_minute", "mean_minute", "quantiles_minute")),
            "refused": plan.contradictions.get(model.key, ""),
        }
        if demand is not None:
            column = 1  # the forecast window of 60 s
            quantiles = demand.forecast.quantiles[row, column].tolist()
            names = map(str, demand.horizon.probabilities)
            document["p_minute"] = float(demand.p_minute[row])
            document["mean_minute"] = float(demand.forecast.mean[row, column])
            document["quantiles_minute"] = dict(zip(names, quantiles, strict=True))
        documents.append(document)
    return documents


def _print_history(output: Output, records: AutoscalerRecords) -> None:
    if output.as_json:
        output.result([action_document(each) for each in records.history])
        return
    if not records.history:
        output.note("no actions of the autoscaler yet; --dry-run --explain prints its present plan")
        return
    output.table(
        ("AGE", "ACTION", "OF", "POD", "TIER", "REASON", "WHY", "OUTCOME"),
        [
            (
                format_age(records.read_at_s - each.at_s),
                each.verb,
                each.subject,
                each.pod or "-",
                each.tier or "-",
                each.reason,
                each.detail,
                _outcome(each, records.read_at_s),
            )
            for each in records.history
        ],
        optional=("TIER", "REASON"),
    )


def _outcome(action: ActionRecord, now_s: float) -> str:
    if action.outcome != ActionOutcome.BEGUN:
        return f"{action.outcome} {action.error}".strip()
    return "in progress" if now_s - action.at_s < _FORGOTTEN_S else "unknown: no end was recorded"
