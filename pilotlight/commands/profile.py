"""`profile`: measure a model on a pod at growing batch sizes, or exchange profiles by file."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pilotlight.commands import flags
from pilotlight.commands.flags import setting
from pilotlight.commands.kinds import parse_model_names
from pilotlight.commands.pod_profile import (
    POINT_COLUMNS,
    choose_pod,
    measure_profile,
    point_rows,
    slots_line,
)
from pilotlight.commands.profile_application import accuracy_document, profile_application
from pilotlight.commands.target import PlatformTarget, require_known
from pilotlight.errors import InvalidInput, NotFound, RequestFailed
from pilotlight.output import Output
from pilotlight.profile_files import parse_profiles, profiles_document
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.records import profile_document

_LIMITS = {
    "throughput": "larger batches bring no more throughput",
    "memory": "larger batches do not fit into memory",
    "size": "larger batches were not measured (--max-batch-size)",
}

_measure = partial(typer.Option, rich_help_panel="Measure")
_exchange = partial(typer.Option, rich_help_panel="Exchange")
_application = partial(typer.Option, rich_help_panel="Applications")

app = typer.Typer()


@app.command()
@flags.addresses("home", "key", "redis_url", "pool")
async def profile(
    target: PlatformTarget,
    output: Output,
    name: flags.Model,
    *,
    pod: Annotated[
        str | None,
        _measure(help="Pod to measure on. Default: the least busy pod that holds the model."),
    ] = None,
    max_batch_size: Annotated[
        int, _measure(min=1, max=1024, help="Largest batch to measure.")
    ] = 64,
    tokens: Annotated[
        int, _measure(min=1, max=100_000, help="Length of each text, in tokens.")
    ] = 32,
    repeats: Annotated[
        int, _measure(min=1, max=100, help="Inferences to measure per batch size.")
    ] = 5,
    export: Annotated[
        str | None,
        _exchange(
            "--export",
            metavar="FILE",
            help="Write the stored profiles to FILE as JSON instead of measuring; -: print them.",
        ),
    ] = None,
    import_: Annotated[
        str | None,
        _exchange(
            "--import",
            metavar="FILE",
            help="Store the profiles in FILE, as --export writes it, instead of measuring.",
        ),
    ] = None,
    examples: Annotated[
        Path | None,
        _application(
            metavar="FILE",
            help="Labelled examples: measure accuracy and times of an application's variants.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        _application(min=1, help="Of --examples: at most so many, evenly from every class."),
    ] = None,
    pod_secret_file: Annotated[
        Path | None,
        setting(
            "POD_SECRET_FILE",
            "File with the pods' secret. Default: that of the platform in --home.",
        ),
    ] = None,
    namespace: flags.Namespace = None,
) -> None:
    """Measure latency, throughput and memory by batch size; pods then use the best batch size.

    A profile holds for one generation of a model and one product of accelerator, which has the
    profile that was measured or imported last.
    """
    target = replace(target, pod_secret_file=pod_secret_file)
    [model] = parse_model_names([name], namespace)
    if sum(each is not None for each in (export, import_, examples)) > 1:
        raise InvalidInput(["give --export, --import or --examples, not both"])
    plan = {"most_rows": max_batch_size, "tokens": tokens, "repeats": repeats}
    if export is not None:
        await _export(target, output, model, export)
    elif import_ is not None:
        await _import(target, output, model, import_, _read(import_))
    elif examples is not None:
        state = await target.cluster()
        require_known([str(model)], [str(each) for each in state.applications])
        await profile_application(target, output, state.applications[model], examples, limit, plan)
    else:
        await _profile(target, output, model, pod=pod, plan=plan)


async def _profile(
    target: PlatformTarget,
    output: Output,
    name: ModelName,
    *,
    pod: str | None,
    plan: dict[str, int],
) -> None:
    state = await target.cluster()
    require_known([str(name)], [str(each) for each in state.models])
    chosen = choose_pod(state, state.models[name].serving.key, pod)
    output.note(f"profiling {name} on {chosen.name}; the pod continues to serve requests")
    document = await measure_profile(target, chosen, name, plan)
    if output.as_json:
        output.result({"pod": chosen.name, **document})
        return
    output.table(POINT_COLUMNS, point_rows(document))
    best = document["best_rows"]
    output.line(f"batches of up to {best}: {_LIMITS.get(document['limited_by'], 'as measured')}")
    if consequence := slots_line(await target.cluster(), chosen):
        output.line(consequence)


async def _export(target: PlatformTarget, output: Output, name: ModelName, file: str) -> None:
    state = await target.cluster()
    if name in state.applications:
        _export_accuracies(output, state, name, file)
        return
    require_known([str(name)], [str(each) for each in state.models])
    spec = state.models[name].serving
    profiles = state.profiles_of(spec.key)
    if not profiles:
        raise NotFound(f"{name} has no profile; `pilotlight profile {name}` measures one")
    document = profiles_document(spec, profiles)
    products = [profile.product for profile in profiles]
    said = {"file": file, "model": str(name), "accelerators": products}
    _save(output, document, file, said, f"{file}: {name} on {', '.join(products)}")


def _export_accuracies(output: Output, state: ClusterState, name: ModelName, file: str) -> None:
    document = accuracy_document(state.applications[name], state)
    variants = sorted(document["variants"])
    if not variants:
        raise NotFound(
            f"no variant of {name} has a current profile; `pilotlight profile {name} --examples "
            "FILE` measures them"
        )
    said = {"file": file, "application": str(name), "variants": variants}
    _save(output, document, file, said, f"{file}: accuracy of {', '.join(variants)}")


def _save(
    output: Output, document: dict[str, Any], file: str, said: dict[str, Any], line: str
) -> None:
    """Write the document to the file and say so; to standard output nothing else."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput([f"--export: {file} cannot be written: {error}"]) from error
    output.result(said, [line])


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidInput([f"--import: {file} cannot be read: {error}"]) from error


async def _import(
    target: PlatformTarget, output: Output, name: ModelName, file: str, text: str
) -> None:
    async with target.registry() as registry:
        state = await registry.cluster()
        shown = "standard input" if file == "-" else file
        require_known([str(name)], [str(each) for each in state.models])
        spec = state.models[name].serving
        profiles = parse_profiles(text, spec, file=shown)
        for profile in profiles:
            if not await registry.put_profile(profile):
                raise RequestFailed(f"{name} was changed or deleted meanwhile; import again")
    output.result(
        {"model": str(name), "profiles": [profile_document(profile) for profile in profiles]},
        [f"{name} on {each.product}: batches of up to {each.best_rows}" for each in profiles],
    )
