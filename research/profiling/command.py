"""`profile-sharing`: measures a model with shares of an accelerator, and beside other models."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from autoscaler.placement import profile_fits
from pilotlight.commands import flags
from pilotlight.commands.kinds import parse_model_names
from pilotlight.commands.pod_profile import POINT_COLUMNS, choose_pod, measure_profile, point_rows
from pilotlight.commands.target import PlatformTarget, require_known
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.pod import PairFactor, ShareFactor, best_rows
from registry.domain.pod_state import PodState
from registry.domain.records import decode_profile
from research.placement.igniter_fit import mean_busy_pct

app = typer.Typer()


@app.command("profile-sharing")
@flags.addresses("home", "key", "redis_url", "pool")
async def profile_sharing(
    target: PlatformTarget,
    output: Output,
    name: flags.Model,
    *,
    pod: Annotated[
        str | None,
        typer.Option(help="Pod to measure on. Default: the least busy pod that holds the model."),
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option(min=1, max=1024, help="Largest batch to measure.")
    ] = 64,
    tokens: Annotated[
        int, typer.Option(min=1, max=100_000, help="Length of each text, in tokens.")
    ] = 32,
    repeats: Annotated[
        int, typer.Option(min=1, max=100, help="Inferences to measure per batch size.")
    ] = 5,
    shares: Annotated[
        str | None,
        typer.Option(metavar="10,50,100", help="Shares of the accelerator, in %; on a CPU, cores."),
    ] = None,
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Also beside each other model with a profile, which a second pod of the "
            "accelerator runs meanwhile.",
        ),
    ] = False,
    pod_secret_file: Annotated[
        Path | None,
        flags.setting(
            "POD_SECRET_FILE",
            "File with the pods' secret. Default: that of the platform in --home.",
        ),
    ] = None,
    namespace: flags.Namespace = None,
) -> None:
    """Store a model's profile with slowdowns by share of its accelerator and by neighbour."""
    parts = parse_shares(shares)
    target = replace(target, pod_secret_file=pod_secret_file)
    [model] = parse_model_names([name], namespace)
    state = await target.cluster()
    require_known([str(model)], [str(each) for each in state.models])
    chosen = choose_pod(state, state.models[model].serving.key, pod)
    plan = {"most_rows": max_batch_size, "tokens": tokens, "repeats": repeats}
    document = await profile_for_placement(
        target, output, model, chosen, plan, shares=parts, pairs=pairs
    )
    if output.as_json:
        output.result({"pod": chosen.name, **document})
        return
    output.table(POINT_COLUMNS, point_rows(document))
    for share in document["shares"]:
        output.line(
            f"batches of {share['rows']} with a share of {share['share_pct']:g} %: "
            f"{share['factor']:.2f} times as long"
        )
    for pair in document["pairs"]:
        output.line(f"beside {pair['neighbour']}: {pair['factor']:.2f} times as long")
    for plug_in, fit in profile_fits().items():
        if found := document.get(plug_in):
            output.line(f"{fit.title} {found['source']}")


_NOT_STORED = {"is_stored": 0}
_LOOP_REPEATS = 100


def parse_shares(text: str | None) -> list[int]:
    """Shares in %, ascending, each once; raises InvalidInput with all mistakes."""
    parts = [each.strip() for each in text.split(",")] if text is not None else []
    wrong = [each for each in parts if not (each.isdecimal() and 1 <= int(each) <= 100)]
    if wrong:
        shown = ", ".join(map(repr, wrong))
        raise InvalidInput([f"--shares must be percentages of 1 to 100, such as 50,100: {shown}"])
    return sorted({int(each) for each in parts})


async def profile_for_placement(
    target: PlatformTarget,
    output: Output,
    name: ModelName,
    pod: PodState,
    plan: Mapping[str, int],
    *,
    shares: Sequence[int],
    pairs: bool,
) -> dict[str, Any]:
    """Measure the model on its whole accelerator, with shares of it, and beside other models.

    On a CPU the accelerator is as many cores as an inference has threads. The result is stored, and
    returned as JSON. Raises RequestFailed.
    """
    state = await target.cluster()
    others = _neighbours(state, name, pod) if pairs else []
    beside = _pod_beside(state, pod) if pairs else pod
    is_gpu = bool(pod.info.accelerator.uuid)  # its share is that of the process
    plan = {**plan, **_NOT_STORED, "share_pct": 0 if is_gpu else 100}
    document = await measure_profile(target, pod, name, plan)
    alone = _latencies(document)
    found_shares: list[ShareFactor] = []
    for share in [each for each in shares if each < 100]:
        output.note(f"{name} with a share of {share} %")
        limited = {**plan, "share_pct": share}
        answer = await measure_profile(target, pod, name, limited)
        measured, had = _latencies(answer), float(answer["share_pct"])
        if had in {100.0, *(each.share_pct for each in found_shares)}:
            continue  # rounded up to whole cores
        found_shares += [
            ShareFactor(had, rows, max(1.0, measured[rows] / alone[rows]))
            for rows in alone.keys() & measured.keys()
        ]
    found_pairs = []
    for other, rows in others:
        output.note(f"{name} beside {other} on {beside.name}")
        async with _busy(target, beside, other, {**plan, "most_rows": rows}):
            measured = _latencies(await measure_profile(target, pod, name, plan))
        sizes = alone.keys() & measured.keys()
        factor = sum(measured[each] for each in sizes) / sum(alone[each] for each in sizes)
        found_pairs.append(PairFactor(str(other), max(1.0, factor)))
    whole = replace(
        decode_profile(json.dumps(document)),
        shares=tuple(sorted(found_shares)),
        pairs=tuple(sorted(found_pairs)),
    )
    used = _used_by_neighbours(state, others, pod)
    fits = {name: each.fit(whole, used) for name, each in profile_fits().items()}
    profile = replace(whole, fits={name: fit for name, fit in fits.items() if fit is not None})
    async with target.registry() as registry:
        if not await registry.put_profile(profile):
            raise RequestFailed(f"{name} was changed or deleted meanwhile; profile it again")
    return document | {
        "shares": [
            {"share_pct": each.share_pct, "rows": each.rows, "factor": each.factor}
            for each in profile.shares
        ],
        "pairs": [{"neighbour": each.neighbour, "factor": each.factor} for each in profile.pairs],
        **fits,
    }


def _used_by_neighbours(
    state: ClusterState, others: Sequence[tuple[ModelName, int]], pod: PodState
) -> dict[str, float]:
    """By neighbour: what its batches, up to those that it ran, keep busy of the accelerator."""
    return {
        str(other): mean_busy_pct([each for each in profile.points if each.rows <= rows])
        for other, rows in others
        for profile in state.profiles_of(state.models[other].serving.key)
        if profile.product == pod.kind.product
    }


def _latencies(document: Mapping[str, Any]) -> dict[int, float]:
    return {point["rows"]: point["latency_s"] for point in document["points"]}


def _neighbours(state: ClusterState, name: ModelName, pod: PodState) -> list[tuple[ModelName, int]]:
    """The other models with a profile of the pod's accelerator, and their best batches."""
    found = [
        (other, best_rows(profile.points))
        for other, record in sorted(state.models.items())
        for profile in state.profiles_of(record.serving.key)
        if other != name and profile.product == pod.kind.product
    ]
    if not found:
        raise RequestFailed(
            f"--pairs: no other model has a profile on {pod.kind.product}; profile the models that "
            f"may be neighbours of {name} first"
        )
    return found


def _pod_beside(state: ClusterState, pod: PodState) -> PodState:
    """Another pod on the accelerator: of a GPU by its UUID, of a CPU on the same machine."""
    uuid = pod.info.accelerator.uuid

    def is_beside(other: PodState) -> bool:
        if uuid:
            return other.info.accelerator.uuid == uuid
        return other.address.rpartition(":")[0] == pod.address.rpartition(":")[0]

    for other in sorted(state.pods.values(), key=lambda each: (each.slots_busy, each.name)):
        if other.name != pod.name and other.is_accepting and is_beside(other):
            return other
    raise RequestFailed(f"--pairs needs two pods on one accelerator; {pod.name} is alone on its")


@contextlib.asynccontextmanager
async def _busy(
    target: PlatformTarget, pod: PodState, name: ModelName, plan: Mapping[str, int]
) -> AsyncIterator[None]:
    """The pod computes batches of the model all the time; raises RequestFailed if it cannot."""
    await measure_profile(target, pod, name, {**plan, "repeats": 1})  # loads the model

    async def compute() -> None:
        while True:
            await measure_profile(target, pod, name, {**plan, "repeats": _LOOP_REPEATS})

    task = asyncio.create_task(compute())
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, RequestFailed):
            await task
