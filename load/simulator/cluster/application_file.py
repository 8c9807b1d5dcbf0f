"""Reads the applications of a cluster file, and the files that it names for them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from load.simulator.cluster.plan import ApplicationExamples, ApplicationPlan, ModelPlan
from registry.domain.application import KIND, ApplicationSpec, parse_confusion
from registry.errors import InvalidModel
from variants.application import API_VERSION, read_application
from variants.labelled_examples import InvalidExamples, read_examples, read_predictions
from variants.look_files import InvalidSneakPeek, SneakPeekModel, read_for
from variants.planning.window import profiled_accuracy

_FILE: Final = "file://"


class ApplicationSection(BaseModel):
    """An entry of `applications` in a cluster file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*(/[a-z0-9][a-z0-9-]*)?$")]
    spec: dict[str, Any]
    profile: str | dict[str, list[list[int]]]
    """A file that `pilotlight profile APP --export` wrote, or confusion matrices by variant."""
    examples: str | None = None


def application_plans(
    sections: Sequence[ApplicationSection], models: Sequence[ModelPlan], problems: list[str]
) -> tuple[ApplicationPlan, ...]:
    """Plans of the sections without mistakes; adds a text for each mistake."""
    found = []
    for at, section in enumerate(sections):
        mistakes: list[str] = []
        plan = _plan(section, models, mistakes)
        problems += [f"applications[{at}]: {each}" for each in mistakes]
        if plan is not None and not mistakes:
            found.append(plan)
    return tuple(found)


def _plan(
    section: ApplicationSection, models: Sequence[ModelPlan], problems: list[str]
) -> ApplicationPlan | None:
    spec = _spec(section, problems)
    if spec is None:
        return None
    if any(each.spec.name == spec.name for each in models):
        problems.append(f"name must not be that of a model, was {section.name!r}")
    variants = [
        each.spec.name.name
        for each in models
        if each.spec.name.namespace == spec.name.namespace
        and each.spec.policy.application == spec.name.name
    ]
    if not variants:
        problems.append(
            f"has no variants: give models the annotation application: {spec.name.name}"
        )
    confusions = _confusions(section, spec, variants, problems)
    look = _look(spec, problems)
    return ApplicationPlan(
        spec,
        confusions,
        _examples(section, spec, variants, look, problems),
        None if look is None else profiled_accuracy(look.confusion),
    )


def _spec(section: ApplicationSection, problems: list[str]) -> ApplicationSpec | None:
    namespace, _, name = section.name.rpartition("/")
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "spec": section.spec,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
    }
    try:
        return read_application(document, section.name)
    except InvalidModel as error:
        problems += error.problems
        return None


def _confusions(
    section: ApplicationSection, spec: ApplicationSpec, variants: Sequence[str], problems: list[str]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    rows: Mapping[str, Any]
    if isinstance(section.profile, str):
        try:
            document = json.loads(Path(section.profile).read_text())
            rows = {name: each["confusion"] for name, each in document["variants"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(
                f"profile: {section.profile} is not what `pilotlight profile --export` writes: "
                f"{error}"
            )
            return {}
    else:
        rows = section.profile
    found = {}
    for name in variants:
        try:
            found[name] = parse_confusion(rows.get(name), len(spec.classes))
        except ValueError as error:
            shown = str(rows.get(name))[:80]
            problems.append(f"profile: variant {name} must have {error}, was {shown}")
    return found


def _look(spec: ApplicationSpec, problems: list[str]) -> SneakPeekModel | None:
    if spec.sneak_peek is None:
        return None
    if not spec.sneak_peek.uri.startswith(_FILE):
        problems.append(f"spec.sneakPeek.uri must begin with {_FILE}, was {spec.sneak_peek.uri!r}")
        return None
    try:
        return read_for(spec, Path(spec.sneak_peek.uri.removeprefix(_FILE)))
    except InvalidSneakPeek as error:
        problems.append(f"spec.sneakPeek: {error}")
        return None


def _examples(
    section: ApplicationSection,
    spec: ApplicationSpec,
    variants: Sequence[str],
    look: SneakPeekModel | None,
    problems: list[str],
) -> ApplicationExamples | None:
    if section.examples is None:
        return None
    path = Path(section.examples)
    names = list(look.inputs) if look is not None else [each.name for each in spec.inputs]
    try:
        given = read_examples(
            path, classes=len(spec.classes), inputs=names, needs_every_class=False
        )
        predicted = read_predictions(path, variants, classes=len(spec.classes))
    except InvalidExamples as error:
        problems += error.problems
        return None
    evidence: list[tuple[float, ...]] = []
    if look is not None:
        rows, width = given.features(), look.examples.centre.shape[0]
        if rows.shape[1] == width:
            evidence = [tuple(each) for each in look.examples.evidence(rows).tolist()]
        else:
            problems.append(f"{path}: must have {width} numbers per row, had {rows.shape[1]}")
    columns = {name: labels.tolist() for name, labels in predicted.items()}
    return ApplicationExamples(given.labels.tolist(), columns, evidence)
