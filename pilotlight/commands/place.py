"""`place`: plan which models share which accelerators, from files; nothing is carried out."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from autoscaler.placement.planners.catalogue import BY_COEFFICIENTS, PLANNERS
from autoscaler.placement.planners.explanation import explain
from autoscaler.placement.planners.fewest import accelerators_of, plan_fewest
from autoscaler.placement.planners.igniter_json import read_igniter
from autoscaler.placement.planners.plan import Placement, Plan
from autoscaler.placement.planners.problem import (
    AcceleratorView,
    InvalidPlacementInput,
    KindCoefficients,
    ModelProfile,
    PlanParams,
    Profiles,
    Workload,
)
from autoscaler.placement.planners.profile_csv import read_profiles
from autoscaler.placement.planners.rates_csv import read_workloads
from autoscaler.placement.planners.validation import validate
from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output

_GPUS: Final = re.compile(r"(?P<kind>[^:,]+)(:(?P<count>[0-9]+))?")
_MAX_ACCELERATORS: Final = 1000

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class _Problem:
    workloads: list[Workload]
    accelerators: list[AcceleratorView]
    profiles: Profiles
    open_kind: str | None
    """The kind, if its number is not given: the fewest are wanted."""


@app.command()
def place(
    *,
    profiles: Annotated[
        list[Path],
        typer.Option(
            help="CSV of latency, throughput, memory and use by model and batch, or JSON of "
            "iGniter's measurements. Repeat for several."
        ),
    ],
    rates: Annotated[
        Path, typer.Option(help="CSV of model, rps, slo_ms and, if wanted, max_batch_size.")
    ],
    gpus: Annotated[
        str,
        typer.Option(
            help="KIND:COUNT, separated by commas; one KIND alone: as few as serve everything."
        ),
    ],
    planner: Annotated[
        str, typer.Option(help=f"Planners, separated by commas: {', '.join(PLANNERS)}.")
    ] = "ao-milp",
    explain_: Annotated[
        bool, typer.Option("--explain", help="Say why each model is where it is.")
    ] = False,
    require_all: Annotated[
        bool, typer.Option("--require-all", help="Fail (status 1) if a model falls short.")
    ] = False,
    fair: Annotated[
        bool, typer.Option("--fair", help="Raise the model that is served worst first.")
    ] = False,
    no_shares: Annotated[
        bool, typer.Option("--no-shares", help="Limit no model to a share of its GPU.")
    ] = False,
    json_: flags.Json = False,
) -> None:
    """Plan which models share which accelerators, with which batch size and share.

    Nothing is carried out. Every planner's goodput is recomputed from its plan.
    """
    names = [name.strip() for name in planner.split(",")]
    problem = _problem(profiles, rates, gpus, names)
    params = PlanParams(has_shares=not no_shares, is_fair=fair)
    output = Output(json_)
    try:
        placements = [_plan(PLANNERS[name], problem, params) for name in names]
    except InvalidPlacementInput as error:
        raise InvalidInput(error.problems) from error
    documents = []
    for placement in placements:
        lines = explain(placement, problem.workloads, _used(problem, placement), problem.profiles)
        if not explain_:
            lines = []
        documents.append({**_document(placement), **({"explanation": lines} if lines else {})})
        _print(placement, lines, output)
    short = _shortfall_lines(placements, problem, params) if require_all else []
    if short:
        failure = RequestFailed("\n".join(short))
        failure.partial_result = {"placements": documents}
        raise failure
    if json_:
        output.result({"placements": documents})


def _problem(profiles: Sequence[Path], rates: Path, gpus: str, names: Sequence[str]) -> _Problem:
    """Everything that the files and flags say; raises InvalidInput with all mistakes."""
    problems = [
        f"--planner must be one of {', '.join(PLANNERS)}, was {name!r}"
        for name in names
        if name not in PLANNERS
    ]
    accelerators, open_kind = _accelerators(gpus, problems)
    kind = accelerators[0].kind if accelerators else "gpu"
    workloads: list[Workload] = []
    known = _read_profiles(profiles, kind, problems)
    try:
        workloads = read_workloads(_lines(rates, problems), file=str(rates))
    except InvalidPlacementInput as error:
        problems += error.problems
    if workloads and (known.models or known.igniter):
        checked = accelerators or accelerators_of(kind, 1)  # a wrong --gpus is said already
        for by_coefficients in sorted({name in BY_COEFFICIENTS for name in names}):
            try:
                validate(workloads, checked, known, by_coefficients=by_coefficients)
            except InvalidPlacementInput as error:
                problems += error.problems
    if problems:
        raise InvalidInput(list(dict.fromkeys(problems)))
    return _Problem(workloads, accelerators, known, open_kind)


def _read_profiles(files: Sequence[Path], kind: str, problems: list[str]) -> Profiles:
    models: list[ModelProfile] = []
    igniter: list[KindCoefficients] = []
    for file in files:
        lines = _lines(file, problems)
        try:
            if file.suffix == ".json":
                igniter.append(read_igniter("\n".join(lines), kind=kind, file=str(file)))
            else:
                models += read_profiles(lines, kind=kind, file=str(file))
        except InvalidPlacementInput as error:
            problems += error.problems
    return Profiles(tuple(models), igniter=tuple(igniter))


def _lines(path: Path, problems: list[str]) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        problems.append(f"{path} cannot be read: {error}")
        return []


def _accelerators(gpus: str, problems: list[str]) -> tuple[list[AcceleratorView], str | None]:
    found: list[AcceleratorView] = []
    parts = [part.strip() for part in gpus.split(",")]
    for part in parts:
        match = _GPUS.fullmatch(part)
        count = int(match["count"]) if match and match["count"] else None
        is_open = match is not None and count is None and len(parts) == 1
        if match is None or (count is None and not is_open) or count == 0:
            problems.append(f"--gpus must be KIND:COUNT[,KIND:COUNT…] or one KIND, was {part!r}")
        elif is_open:
            return accelerators_of(match["kind"], 1), match["kind"]
        elif count is not None and count > _MAX_ACCELERATORS:
            problems.append(f"--gpus: at most {_MAX_ACCELERATORS} of a kind, were {count}")
        elif count is not None:
            found += accelerators_of(match["kind"], count)
    return found, None


def _plan(plan: Plan, problem: _Problem, params: PlanParams) -> Placement:
    if problem.open_kind is not None:
        return plan_fewest(plan, problem.workloads, problem.open_kind, problem.profiles, params)
    return plan(problem.workloads, problem.accelerators, problem.profiles, (), params)


def _used(problem: _Problem, placement: Placement) -> list[AcceleratorView]:
    if problem.open_kind is None:
        return problem.accelerators
    return [AcceleratorView(name, problem.open_kind) for name in placement.used]


def _document(placement: Placement) -> dict[str, Any]:
    return {
        "planner": placement.planner,
        "goodput_rps": placement.total_rps,
        "bound_rps": placement.bound_rps,
        "gap_ratio": placement.gap_ratio,
        "accelerators": len(placement.used),
        "replicas": [
            {**asdict(each), "excess_rps": placement.excess_rps(each)}
            for each in placement.replicas
        ],
        "models": [
            {**asdict(each), "shortfall_rps": each.shortfall_rps} for each in placement.models
        ],
    }


def _print(placement: Placement, lines: Sequence[str], output: Output) -> None:
    output.table(
        ("ACCELERATOR", "MODEL", "BATCH", "SHARE", "REQ/S", "ABOVE CAPACITY"),
        [
            (
                each.accelerator,
                each.model,
                str(each.batch_size),
                "-" if each.share_pct is None else f"{each.share_pct:g} %",
                f"{each.rate_rps:.2f}",
                f"{excess:.2f}" if (excess := placement.excess_rps(each)) else "-",
            )
            for each in placement.replicas
        ],
        title=placement.planner,
    )
    wanted = sum(each.rate_rps for each in placement.models)
    output.line(
        f"expected goodput {placement.total_rps:.2f} of {wanted:g} req/s on "
        f"{len(placement.used)} accelerators; at most {placement.bound_rps:.2f}"
    )
    if not lines:
        lines = [
            f"{each.model}: short by {each.shortfall_rps:.2f} req/s: {each.reason}"
            for each in placement.models
            if each.reason
        ]
    for line in lines:
        output.line(f"  {line}")
    output.line()


def _shortfall_lines(
    placements: Sequence[Placement], problem: _Problem, params: PlanParams
) -> list[str]:
    return [
        f"{placement.planner}: {_shortfalls(placement)}; {_needed(placement, problem, params)}"
        for placement in placements
        if placement.has_shortfall
    ]


def _shortfalls(placement: Placement) -> str:
    return ", ".join(
        f"{each.model} short by {each.shortfall_rps:.2f} req/s ({each.reason})"
        for each in placement.models
        if each.reason
    )


def _needed(placement: Placement, problem: _Problem, params: PlanParams) -> str:
    kinds = {each.kind for each in problem.accelerators}
    if len(kinds) > 1:
        return "with mixed kinds the GPUs needed are not computed"
    [kind] = kinds
    enough = plan_fewest(
        PLANNERS[placement.planner], problem.workloads, kind, problem.profiles, params
    )
    if enough.has_shortfall:
        return "more GPUs do not help"
    return f"{len(enough.used)} GPUs are needed"
