"""`promote` and `rollback`: end the trial of a canary, for it or against it."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from pilotlight.commands import flags
from pilotlight.commands.kinds import parse_model_names
from pilotlight.commands.target import PlatformTarget, require_known
from pilotlight.errors import InvalidInput, NotFound, RequestFailed
from pilotlight.output import Output
from registry.domain.canaries import find_canaries, traffic_of
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord, ModelSpec
from registry.errors import InvalidModel
from registry.inference_service.annotations import PREFIX

app = typer.Typer()

Name = Annotated[
    str,
    typer.Argument(
        help="The model, or its canary; NAME or NAMESPACE/NAME.",
        autocompletion=flags.complete_model,
    ),
]
_OF_WEIGHTS: Final = frozenset(
    f"{PREFIX}{name}" for name in ("task", "dtype", "base-model", "engine")
)
"""Annotations that belong to the files that are served, not to how they are served."""


@app.command()
@flags.addresses(*flags.REGISTRY)
async def promote(
    target: PlatformTarget, output: Output, name: Name, *, namespace: flags.Namespace = None
) -> None:
    """Let a model serve its canary's files, and delete the canary.

    The model keeps its name and annotations; the version before serves until the new one is warm.
    """
    [model] = parse_model_names([name], namespace)
    async with target.registry() as registry:
        state = await registry.cluster()
        stable, canaries = _trial(state, model)
        if len(canaries) > 1:
            named = ", ".join(each.name.name for each in canaries)
            raise InvalidInput([f"{stable} has several canaries, name the one to promote: {named}"])
        [canary] = canaries
        if stable not in state.models:
            raise NotFound(f"{canary.name} is a canary of {stable}, which does not exist")
        failure = state.models[canary.name].failure
        if failure is not None and failure.is_permanent:
            raise RequestFailed(
                f"{canary.name} is not promoted, its files cannot be served: {failure.message}; "
                "apply the canary with corrected files, or end the trial by `pilotlight rollback`"
            )
        promoted = _with_files_of(state.models[stable].spec, canary)
        try:
            await registry.put_models([promoted])
        except InvalidModel as error:
            raise RequestFailed(str(error)) from error
        await registry.delete_models([canary.name])
    output.result(
        {"model": str(stable), "canary": str(canary.name), "storage_uri": promoted.storage_uri},
        [f"{stable} serves {promoted.storage_uri}, and {canary.name} is deleted"],
    )
    output.note(f"set storageUri in {stable}'s file, too: the next `apply` of it would go back")


@app.command()
@flags.addresses(*flags.REGISTRY)
async def rollback(
    target: PlatformTarget, output: Output, name: Name, *, namespace: flags.Namespace = None
) -> None:
    """Delete a model's canaries, or the named one: the model serves all requests again."""
    [model] = parse_model_names([name], namespace)
    async with target.registry() as registry:
        stable, canaries = _trial(await registry.cluster(), model)
        deleted = [each.name for each in canaries]
        await registry.delete_models(deleted)
    output.result(
        {"model": str(stable), "deleted": list(map(str, deleted))},
        [f"{stable} serves all of its requests; deleted: {', '.join(map(str, deleted))}"],
    )


def _trial(state: ClusterState, name: ModelName) -> tuple[ModelName, list[ModelSpec]]:
    """The model and the canaries that a name means. Raises NotFound."""
    require_known([str(name)], [str(each) for each in state.models])
    spec = state.models[name].spec
    if spec.policy.canary_of is not None:
        return ModelName(name.namespace, spec.policy.canary_of), [spec]
    canaries = [
        each.spec
        for _, each in sorted(state.models.items())
        if each.spec.policy.canary_of == name.name and each.spec.name.namespace == name.namespace
    ]
    if not canaries:
        raise NotFound(
            f"{name} has no canary; a model is one by the annotation {PREFIX}canary-of "
            "(docs/canaries.md). To return to earlier files, apply the earlier YAML"
        )
    return name, canaries


def note_canaries(output: Output, specs: Sequence[ModelSpec], state: ClusterState) -> None:
    """Say which of the models, as declared now, are canaries that get no or fewer requests."""
    models = {**state.models, **{spec.name: ModelRecord(spec) for spec in specs}}
    found = find_canaries(models.values())
    for spec in specs:
        traffic = traffic_of(spec, models, found)
        if traffic.canary_of and traffic.problem:
            hint = "" if traffic.canary_of in models else _near_name(traffic.canary_of, models)
            line = f"{spec.name} is a canary without its share of requests: {traffic.problem}{hint}"
            output.note(line)


def _near_name(name: ModelName, models: Iterable[ModelName]) -> str:
    known = [each.name for each in models if each.namespace == name.namespace]
    near = difflib.get_close_matches(name.name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _with_files_of(stable: ModelSpec, canary: ModelSpec) -> ModelSpec:
    """The stable model as it is served, with what the canary serves."""
    annotations = [pair for pair in stable.annotations if pair[0] not in _OF_WEIGHTS]
    annotations += [pair for pair in canary.annotations if pair[0] in _OF_WEIGHTS]
    return replace(
        stable,
        storage_uri=canary.storage_uri,
        format=canary.format,
        task=canary.task,
        protocol=canary.protocol,
        credentials=canary.credentials,
        needs=canary.needs,
        precision=canary.precision,
        engine=canary.engine,
        engine_args=canary.engine_args,
        base=canary.base,
        annotations=tuple(sorted(annotations)),
    )
