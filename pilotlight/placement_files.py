"""The files of `pilotlight place`: profiles in three forms, and rates.

Models are named as in `predict`: those of the namespace `default` by their name alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autoscaler.placement.planners.input_csv import read_profiles, read_workloads
from autoscaler.placement.planners.problem import (
    InvalidPlacementInput,
    ModelFits,
    ModelProfile,
    Profiles,
    Workload,
    model_profile,
    slowed_pairs,
)
from pilotlight.errors import InvalidInput
from pilotlight.profile_file import ExportedProfile, parse_exported, parse_fitted

_DEFAULT = "default/"


def read_profile_files(files: Sequence[Path], kind: str, problems: list[str]) -> Profiles:
    """All files together; `kind`: of the accelerator, where a file does not say. Adds problems."""
    models: list[ModelProfile] = []
    fits: list[ModelFits] = []
    exported: list[ExportedProfile] = []
    for file in files:
        lines = _lines(file, problems)
        if lines is None:
            continue
        try:
            if file.suffix != ".json":
                models += [
                    replace(each, model=_short(each.model))
                    for each in read_profiles(lines, kind=kind, file=str(file))
                ]
            elif fitted := parse_fitted("\n".join(lines), file=str(file), product=kind):
                fits += [ModelFits(_short(each.key), kind, each.fits) for each in fitted]
            else:
                exported += parse_exported("\n".join(lines), file=str(file))
        except (InvalidPlacementInput, InvalidInput) as error:
            problems += error.problems
    return Profiles(
        tuple(models + [_model(each) for each in exported]),
        slowed_pairs(
            (_short(each.model), _short(pair.neighbour), pair.factor)
            for each in exported
            for pair in each.profile.pairs
        ),
        (*fits, *_fits(exported)),
    )


def read_rates_file(file: Path, problems: list[str]) -> list[Workload]:
    """Adds problems."""
    lines = _lines(file, problems)
    if lines is None:
        return []
    try:
        workloads = read_workloads(lines, file=str(file))
    except InvalidPlacementInput as error:
        problems += error.problems
        return []
    return [replace(each, model=_short(each.model)) for each in workloads]


def _short(model: str) -> str:
    return model.removeprefix(_DEFAULT)


def _model(exported: ExportedProfile) -> ModelProfile:
    return model_profile(
        _short(exported.model),
        exported.profile,
        weights_bytes=exported.weights_bytes,
        memory_bytes=exported.memory_bytes,
    )


def _fits(exported: Sequence[ExportedProfile]) -> list[ModelFits]:
    return [
        ModelFits(_short(each.model), each.profile.product, each.profile.fits)
        for each in exported
        if each.profile.fits
    ]


def _lines(path: Path, problems: list[str]) -> list[str] | None:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        problems.append(f"{path} cannot be read: {error}")
        return None
