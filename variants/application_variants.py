"""Which models are variants of an application, and why one cannot be chosen. Pure."""

from collections.abc import Sequence

from registry.domain.application import AccuracyProfile, ApplicationSpec, InputTensor
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec


def named_variants(
    application: ApplicationSpec, state: ClusterState
) -> list[tuple[ModelSpec, str | None]]:
    """The models of its namespace that name it, by name; each with its problem, None: none."""
    name = application.name
    specs = [
        record.serving
        for model, record in sorted(state.models.items())
        if model.namespace == name.namespace and record.serving.policy.application == name.name
    ]
    return [(spec, _problem(application, spec, state)) for spec in specs]


def no_variants(application: ApplicationSpec) -> str:
    """What to do about an application that no model names."""
    name = application.name
    return (
        f"application {name} has no variants: annotate models of its namespace with "
        f"pilotlight.io/application: {name.name}"
    )


def accuracy_of(spec: ModelSpec, state: ClusterState) -> AccuracyProfile | None:
    """The model's own, or that of the model which `pilotlight.io/profile` names."""
    return state.accuracies.get(_profiled_model(spec))


def _profiled_model(spec: ModelSpec) -> ModelName:
    other = spec.policy.profile
    return spec.name if other is None else ModelName(spec.name.namespace, other)


def _problem(application: ApplicationSpec, spec: ModelSpec, state: ClusterState) -> str | None:
    name, profile = _profiled_model(spec), accuracy_of(spec, state)
    whose = "its" if name == spec.name else f"{name}'s"
    record = state.models.get(name)
    if record is None:
        return f"{name}, which its annotation pilotlight.io/profile names, does not exist"
    if profile is None:
        return f"{'' if name == spec.name else f'{name} '}has no accuracy profile"
    if profile.key != record.serving.key:
        return f"{whose} accuracy profile is of another generation"
    if profile.classes != application.classes:
        return f"{whose} accuracy profile is of other classes"
    own = state.accuracies.get(spec.name)
    if own is None or own.key != spec.key:
        return None
    return "; ".join(metadata_problems(application, own.inputs, own.outputs)) or None


def metadata_problems(
    application: ApplicationSpec, inputs: Sequence[InputTensor], outputs: Sequence[str]
) -> list[str]:
    """Where a variant's V2 metadata contradicts the application; it may use only some inputs."""
    problems = []
    known = {each.name: each for each in application.inputs}
    for given in inputs if known else ():
        declared = known.get(given.name)
        if declared is None:
            has = ", ".join(known)
            problems.append(f"takes the input {given.name!r}; the application has {has}")
        elif given.datatype != declared.datatype or not _agree(given.shape, declared.shape):
            problems.append(
                f"its input {given.name} is {given.datatype} {list(given.shape)}; the "
                f"application's is {declared.datatype} {list(declared.shape)}"
            )
    if outputs and application.output not in outputs:
        problems.append(
            f"has no output {application.output!r}, which the application names; its outputs: "
            f"{', '.join(outputs)}"
        )
    return problems


def _agree(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Whether two shapes can be the same; -1 is any length."""
    return len(shape) == len(declared) and all(
        -1 in (one, other) or one == other for one, other in zip(shape, declared, strict=True)
    )
