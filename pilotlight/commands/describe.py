"""`describe model` and `describe pod`: all that the registry knows of one object."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
import yaml

from pilotlight.commands import flags
from pilotlight.commands.get import (
    age_text,
    model_document,
    model_path,
    model_status,
    pod_document,
    pods_and_uses,
    pods_by_tier,
    traffic_text,
)
from pilotlight.commands.object_names import parse_model_names
from pilotlight.commands.target import PlatformTarget, require_known
from pilotlight.output import Output, format_age
from registry.domain.canaries import find_canaries
from registry.domain.records import ActionRecord, action_document
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.reports import read_declared_times, read_gpu_readings

app = typer.Typer(name="describe", no_args_is_help=True, help="Show one model or pod in detail.")


@app.command("model")
@app.command("isvc", hidden=True)
@app.command("inferenceservice", hidden=True)
@flags.addresses(*flags.REGISTRY)
async def describe_model(
    target: PlatformTarget, output: Output, name: flags.Model, *, namespace: flags.Namespace = None
) -> None:
    """Show a model's declaration, its state on each pod, and the autoscaler's actions on it."""
    [model] = parse_model_names([name], namespace)
    async with target.registry() as registry:
        state, records, declared = await asyncio.gather(
            registry.cluster(), AutoscalerLog(registry).records(), read_declared_times(registry)
        )
    require_known([str(model)], {str(each) for each in state.models})
    record = state.models[model]
    document = model_document(state, record, records, find_canaries(state.models.values()))
    document["created"] = declared.get(str(model))
    document["url"] = f"{target.known_gateway_url}{model_path(model)}"
    document["policy"] = {
        field: value for field, value in asdict(record.spec.policy).items() if value is not None
    }
    document["annotations"] = dict(record.spec.annotations)
    actions = [each for each in records.history if each.subject == str(model)]
    if output.as_json:
        output.result({**document, "actions": [action_document(each) for each in actions]})
        return
    events = [_event(each, records.read_at_s) for each in actions]
    output.line(_text(_for_readers(document, events)))


def _for_readers(model: dict[str, Any], events: list[str]) -> dict[str, Any]:
    """The document in the order of a reader's questions, without what is empty."""
    found = {
        "namespace": model["namespace"],
        "name": model["name"],
        "ready": model["ready"],
        "status": "" if model["failure"] else model_status(model),
        "pods": {tier: ", ".join(pods) for tier, pods in pods_by_tier(model).items()}
        or "none; the model is in storage only",
        "traffic": traffic_text(model),
        "failure": model["failure"],
        "url": model["url"],
        "age": age_text(model),
        "storage_uri": model["storage_uri"],
        "task": model["task"],
        "generation": model["generation"],
        "serving_generation": ""
        if model["serving_generation"] == model["generation"]
        else model["serving_generation"],
        "annotations": model["annotations"],
        "policy": model["policy"],
        "autoscaler": events or "no action on this model yet",
    }
    return {field: value for field, value in found.items() if value not in ("", None, {})}


def _event(action: ActionRecord, now_s: float) -> str:
    """Such as `3m20s ago: load at pod-1, forecast: 12 requests expected in 60 s: done`."""
    at = f" at {action.pod}" if action.pod else ""
    return (
        f"{format_age(now_s - action.at_s)} ago: {action.verb}{at}, {action.reason}: "
        f"{action.detail}: {action.outcome} {action.error}".rstrip()
    )


@app.command("pod")
@flags.addresses(*flags.REGISTRY)
async def describe_pod(
    target: PlatformTarget,
    output: Output,
    name: Annotated[
        str, typer.Argument(help="Name of the pod.", autocompletion=flags.complete_pod)
    ],
) -> None:
    """Show a pod's address, phase, memory by tier and the tier of each of its models."""
    async with target.registry() as registry:
        state, uses = await pods_and_uses(registry)
        gpus = await read_gpu_readings(registry)
    require_known([name], set(state.pods))
    document = pod_document(state, state.pods[name], uses.get(name), gpus.get(name))
    if output.as_json:
        output.result(document)
    else:
        output.line(_text(document))


def _text(document: dict[str, Any]) -> str:
    # through JSON, since enumerations of strings are strings there
    plain = json.loads(
        json.dumps({key.replace("_", " "): value for key, value in document.items()})
    )
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100).rstrip()
