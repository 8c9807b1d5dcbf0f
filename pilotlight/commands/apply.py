"""`apply` and `delete`: register models, applications and graphs from YAML and remove them.

All files are checked first: if any has a mistake, all mistakes are printed and nothing is changed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from pilotlight.commands import flags
from pilotlight.commands.canary import note_canaries
from pilotlight.commands.declaration_check import (
    NOT_CHECKED,
    Checked,
    check_declared,
    variant_problems,
)
from pilotlight.commands.kinds import (
    DECLARED,
    MODEL,
    Declared,
    ObjectName,
    parse_object_names,
    resource_of,
    shown_name,
)
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, NotFound
from pilotlight.output import Output
from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec
from registry.errors import InvalidModel
from registry.inference_service.documents import left_objects
from registry.inference_service.fields import auth_problem, warnings_of
from registry.inference_service.model_resource import declaring_kind
from registry.inference_service.predictors import needs_in_pool
from registry.policy_names import ROUTING
from registry.redis.client import Registry

T = TypeVar("T")

app = typer.Typer()


@app.command()
@flags.addresses(*flags.REGISTRY)
async def apply(
    target: PlatformTarget,
    output: Output,
    *,
    filename: flags.Files,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, and print what would change; change nothing.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the files alone; no platform is needed.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Let a pod read new models' small files and headers; warn if it cannot.",
        ),
    ] = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a model cannot be read, or served.")
    ] = False,
    namespace: flags.Namespace = None,
) -> None:
    """Create or update models, applications and graphs from YAML; all or nothing if invalid.

    --dry-run without a platform checks as --offline does. Both exit with 1 if a file is refused.
    """
    try:
        specs = read_declared(filename, namespace)
        check_policies(specs)
        unserved = await _apply(
            target, output, specs, dry_run=dry_run, offline=offline, check=check
        )
    except InvalidInput as error:
        if not (dry_run or offline):
            raise
        output.failure("invalid input", error.problems)
        raise typer.Exit(1) from error
    if strict and unserved:
        output.note(f"not served (--strict): {', '.join(map(str, sorted(unserved)))}")
        raise typer.Exit(1)


@app.command()
@flags.addresses(*flags.REGISTRY)
async def delete(
    target: PlatformTarget,
    output: Output,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="NAME, NAMESPACE/NAME or KIND/NAME", autocompletion=flags.complete_model
        ),
    ] = None,
    *,
    filename: flags.Files = [],  # noqa: B006 - typer copies it
    namespace: flags.Namespace = None,
) -> None:
    """Delete models, applications and graphs, by name or by the files that define them."""
    if bool(names) == bool(filename):
        raise InvalidInput(["give either names or -f FILE"])
    objects = parse_object_names(names or [], namespace)
    if others := {each.kind for each in objects if each.kind} - set(DECLARED.values()):
        raise InvalidInput([f"{kind.plural} {kind.undeletable}" for kind in others])
    if filename:
        objects = [
            ObjectName(DECLARED[type(each)], each.name)
            for each in read_declared(filename, namespace)
        ]
    await _delete(target, output, objects)


def read_declared(paths: Sequence[str], namespace: str | None) -> list[Declared]:
    """What files, folders and standard input declare; raises InvalidInput with all mistakes.

    A line on standard error names each object that is passed over.
    """
    sources: list[tuple[str, str]] = []
    problems: list[str] = []
    for path in paths:
        try:
            sources += _read_sources(path)
        except (OSError, UnicodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")
        except InvalidInput as error:
            problems += error.problems
    specs: list[Declared] = []
    for kind in DECLARED.values():
        try:
            specs += kind.declaring.read(sources, default_namespace=namespace or "default")
        except InvalidModel as error:
            problems += error.problems
    if problems:
        raise InvalidInput(problems)
    for line in left_objects(sources, default_namespace=namespace or "default"):
        Output().note(line)
    return specs


def check_policies(specs: Sequence[Declared]) -> None:
    """Raises InvalidInput with all models whose routing policy cannot be imported."""
    problems = [
        f"{spec.name}: {problem}"
        for spec in models_of(specs)
        if (problem := ROUTING.problem(spec.policy.routing))
    ]
    if problems:
        raise InvalidInput(problems)


def _read_sources(path: str) -> list[tuple[str, str]]:
    """Names and contents of the YAML at `path`."""
    if path == "-":
        return [("standard input", sys.stdin.read())]
    source = Path(path)
    if not source.is_dir():
        return [(path, source.read_text(encoding="utf-8"))]
    files = sorted(file for file in source.iterdir() if file.suffix in {".yaml", ".yml"})
    if not files:
        raise InvalidInput([f"{path}: the folder holds no .yaml or .yml file"])
    return [(str(file), file.read_text(encoding="utf-8")) for file in files]


async def _apply(
    target: PlatformTarget,
    output: Output,
    specs: Sequence[Declared],
    *,
    dry_run: bool,
    offline: bool,
    check: bool,
) -> set[ModelName]:
    """The models that cannot be served, as far as it is known."""
    has_platform = target.redis_url is not None or target.state_dir.is_locked()
    if offline or (dry_run and not has_platform):
        return print_applied(output, specs, ["valid (no platform asked)"] * len(specs))
    async with target.registry() as registry:
        if check and not dry_run:
            unserved = await declare_and_check(target, registry, output, specs)
            state = await registry.cluster()
            for line in variant_problems(state, _applications(specs)):
                output.note(line)
            return unserved
        await _check_auth(target, specs)
        put = _compare_declared if dry_run else put_declared
        outcomes = await put(registry, specs)
        state = await registry.cluster()
        note_canaries(output, models_of(specs), state)
        return print_applied(output, specs, outcomes, has_server=state.has_server)


async def _check_auth(target: PlatformTarget, specs: Sequence[Declared]) -> None:
    """Raises InvalidInput for models that want clients asked, where the gateway asks none."""
    problems = list(filter(None, map(auth_problem, models_of(specs))))
    if problems and not await target.asks_clients():
        raise InvalidInput(problems)


async def declare_and_check(
    target: PlatformTarget,
    registry: Registry,
    output: Output,
    specs: Sequence[Declared],
    *,
    is_note: bool = False,
) -> set[ModelName]:
    """Declare, let pods read new and failed models, print a line per object or note it.

    The models that cannot be served, as far as it is known. Raises InvalidInput.
    """
    await _check_auth(target, specs)
    before = await registry.cluster()
    outcomes = await put_declared(registry, specs)
    state = await registry.cluster()
    note_canaries(output, models_of(specs), state)
    what = "asking pods whether they can read the new models (--no-check: leave it out)"
    async with output.waiting(what):
        changed = _changed(specs, outcomes, before)
        checked = await check_declared(target, registry, state, changed)
    return print_applied(
        output, specs, outcomes, checked, has_server=state.has_server, is_note=is_note
    )


def _changed(
    specs: Sequence[Declared], outcomes: Sequence[str], before: ClusterState
) -> list[ModelSpec]:
    """The models that are new, changed, or could not be read or loaded before."""
    failed = {name for name, record in before.models.items() if record.failure is not None}
    return [
        spec
        for spec, outcome in zip(specs, outcomes, strict=True)
        if isinstance(spec, ModelSpec) and (outcome != "unchanged" or spec.name in failed)
    ]


def _applications(specs: Sequence[Declared]) -> set[ModelName]:
    """The applications among them, and those that models among them are variants of."""
    names = {spec.name for spec in _of_kind(ApplicationSpec, specs)}
    return names | {
        ModelName(spec.name.namespace, spec.policy.application)
        for spec in models_of(specs)
        if spec.policy.application is not None
    }


async def _compare_declared(registry: Registry, specs: Sequence[Declared]) -> list[str]:
    """What `put_declared` would answer. Raises InvalidInput where the pool cannot take a model."""
    try:
        await registry.check_models(models_of(specs))
    except InvalidModel as error:
        raise InvalidInput(error.problems) from error
    state = await _check_kinds(registry, specs)
    outcomes = []
    for spec in specs:
        before, after = await DECLARED[type(spec)].declaring.present(registry, state, spec)
        changed = "unchanged" if before == after else "configured"
        outcomes.append(f"{'created' if before is None else changed} (dry run)")
    return outcomes


async def _check_kinds(registry: Registry, specs: Sequence[Declared]) -> ClusterState:
    """The state; raises InvalidInput for a name that an object of the other kind declares."""
    state = await registry.cluster()
    problems = [
        f"{declaring_kind(spec)} {spec.name}: metadata.name must be another one: "
        f"{declaring_kind(known.spec)} {spec.name} declares the model already; delete it first"
        for spec in models_of(specs)
        if (known := state.models.get(spec.name)) is not None
        and declaring_kind(known.spec) != declaring_kind(spec)
    ]
    if problems:
        raise InvalidInput(problems)
    return state


def models_of(specs: Sequence[Declared]) -> list[ModelSpec]:
    return _of_kind(ModelSpec, specs)


def _of_kind(kind: type[T], specs: Sequence[Declared]) -> list[T]:
    return [spec for spec in specs if isinstance(spec, kind)]


async def put_declared(registry: Registry, specs: Sequence[Declared]) -> list[str]:
    """Declare models, then applications and graphs; an outcome each.

    Raises InvalidInput: no model is declared if the pool cannot take one.
    """
    await _check_kinds(registry, specs)
    outcomes = {}
    for kind, declared in DECLARED.items():
        try:
            put = await declared.declaring.put(registry, _of_kind(kind, specs))
        except InvalidModel as error:
            raise InvalidInput(error.problems) from error
        outcomes[kind] = iter(put)
    return [next(outcomes[type(spec)]) for spec in specs]


def print_applied(
    output: Output,
    specs: Sequence[Declared],
    outcomes: Sequence[str],
    checked: Checked = NOT_CHECKED,
    *,
    has_server: bool = False,
    is_note: bool = False,
) -> set[ModelName]:
    """One line per object, as kubectl prints it; outcomes are created, configured or unchanged.

    The models that cannot be served. `has_server`: a model server may read formats without an
    engine here.
    """
    warnings = {
        spec.name: f"cannot be served: {needs}"
        for spec in models_of(specs)
        if (needs := needs_in_pool(spec, has_server=has_server))
    }
    warnings |= {name: f"cannot be read: {why}" for name, why in checked.unreadable.items()}
    unserved = set(warnings)
    warnings |= {name: f"not checked: {why}" for name, why in checked.unchecked.items()}
    for each in (line for spec in specs for line in warnings_of(spec)):
        output.note(f"Warning: {each}")
    applied = list(zip(specs, outcomes, strict=True))
    lines = [
        f"{resource_of(spec)}/{shown_name(spec.name)} {outcome}"
        + (f" ({warnings[spec.name]})" if spec.name in warnings else "")
        for spec, outcome in applied
    ]
    if is_note:
        for line in lines:
            output.note(line)
        return unserved
    documents = [
        {
            "namespace": spec.name.namespace,
            "name": spec.name.name,
            "outcome": outcome,
            **({"warning": warnings[spec.name]} if spec.name in warnings else {}),
            **({"warnings": listed} if (listed := warnings_of(spec)) else {}),
        }
        for spec, outcome in applied
    ]
    output.result(documents, lines)
    return unserved


async def _delete(target: PlatformTarget, output: Output, objects: Sequence[ObjectName]) -> None:
    """Delete the models, applications and graphs that exist; then raise NotFound for the others."""
    deleted: dict[ObjectName, str] = {}
    async with target.registry() as registry:
        models = (await registry.cluster()).models
        for kind in DECLARED.values():
            asked = [o for o in objects if o not in deleted and o.kind in (None, kind)]
            absent = await kind.declaring.delete(registry, [each.name for each in asked])
            deleted |= {
                each: resource_of(models[each.name].spec)
                if kind is MODEL and each.name in models
                else kind.resource
                for each in asked
                if each.name not in absent
            }
    found = [each for each in objects if each in deleted]
    lines = [f'{deleted[each]} "{shown_name(each.name)}" deleted' for each in found]
    unknown = [str(each.name) for each in objects if each not in deleted]
    if unknown:
        for line in lines:
            output.note(line)
        listing = " and ".join(f"`get {kind.plural}`" for kind in DECLARED.values())
        raise NotFound(f"not found: {', '.join(unknown)}; `pilotlight {listing[1:]} list them")
    output.result(
        [
            {"namespace": each.name.namespace, "name": each.name.name, "outcome": "deleted"}
            for each in found
        ],
        lines,
    )
