"""`place`: plan, and explain, which models share which accelerators; nothing is applied."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from autoscaler.placement.planners.catalogue import planner_names, planner_of
from autoscaler.placement.planners.plan import ModelGoodput, Placement, accelerators_of, plan_fewest
from autoscaler.placement.planners.prediction import Predictor, batch_times
from autoscaler.placement.planners.problem import (
    AcceleratorView,
    InvalidPlacementInput,
    PlanParams,
    Profiles,
    Workload,
    validate,
)
from pilotlight.commands import flags
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output
from pilotlight.placement_files import read_profile_files, read_rates_file
from registry.domain.model import PlacementName
from registry.domain.records import PlacedReplica


def explain(
    placement: Placement,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
) -> list[str]:
    """A line per model, then a line per accelerator that is shared or idle."""
    kinds = {each.name: each.kind for each in accelerators}
    by_model = {each.model: each for each in workloads}
    lines = [
        _model_line(placement, each, by_model[each.model], kinds, profiles)
        for each in placement.models
    ]
    for name in sorted(kinds):
        here = [each for each in placement.replicas if each.accelerator == name]
        if not here:
            lines.append(f"{name}: idle")
        elif len(here) > 1:
            lines.append(_shared_line(placement.planner, name, here, kinds[name], profiles))
    return lines


def _model_line(
    placement: Placement,
    found: ModelGoodput,
    workload: Workload,
    kinds: dict[str, str],
    profiles: Profiles,
) -> str:
    replicas = placement.of(found.model)
    if not replicas:
        return f"{found.model}: not served: {found.reason}"
    parts = []
    for each in replicas:
        kind = kinds[each.accelerator]
        point = profiles.point(each.model, kind, each.batch_size)
        alone = f" ({point.latency_s * 1000:.1f} ms alone)" if point is not None else ""
        share = "" if each.share_pct is None else f", share {each.share_pct:.3g} %"
        parts.append(f"batch {each.batch_size}{alone} on {each.accelerator}{share}")
    short = f"; short: {found.reason}" if found.reason else ""
    note = f"; {found.note}" if found.note else ""
    return (
        f"{found.model}: {found.goodput_rps:.2f} of {found.rate_rps:g} req/s within "
        f"{workload.slo_s * 1000:g} ms: {'; '.join(parts)}{short}{note}"
    )


def _shared_line(
    planner: str, name: str, here: Sequence[PlacedReplica], kind: str, profiles: Profiles
) -> str:
    models = " and ".join(each.model for each in here)
    points = [profiles.point(each.model, kind, each.batch_size) for each in here]
    measured = [each for each in points if each is not None]
    if len(measured) < len(points):
        return f"{name}: shared by {models}"
    memory = sum(each.memory_pct for each in measured)
    metric = planner_of(planner).metric
    if metric is None:
        return f"{name}: shared by {models}: memory {memory:.1f} %"
    compute = sum(each.compute_pct(metric) for each in measured)
    return (
        f"{name}: shared by {models}: compute ({metric}) {compute:.1f} %, memory {memory:.1f} %, "
        "of 100 % each"
    )


@dataclass(frozen=True, slots=True)
class Measures:
    """Requests per second over all models, computed alike for every plan.

    Profiled: what the batches can compute one after the other. Predicted in time: requests answered
    within the SLO, with waiting, batch building and neighbours.
    """

    profiled_rps: float
    """Sum of min(rate, throughputs of the replicas' batches): Elvinger 2024, section 5.4.1."""
    in_time_rps: float


def measure(
    placement: Placement,
    workloads: Sequence[Workload],
    accelerators: Sequence[AcceleratorView],
    profiles: Profiles,
    params: PlanParams,
) -> Measures | None:
    """None where a replica's batches were not measured on its accelerator."""
    kinds = {each.name: each.kind for each in accelerators}
    replicas = placement.replicas
    if not all(profiles.points(each.model, kinds[each.accelerator]) for each in replicas):
        return None
    capacities = {each: _throughput(each, kinds[each.accelerator], profiles) for each in replicas}
    profiled = sum(
        min(each.rate_rps, sum(capacities[replica] for replica in placement.of(each.model)))
        for each in workloads
    )
    in_time = Predictor(workloads, kinds, profiles, params).predict(replicas).in_time
    return Measures(profiled, sum(each.rate_rps * in_time[each.model] for each in workloads))


def _throughput(replica: PlacedReplica, kind: str, profiles: Profiles) -> float:
    """As profiled; between measured batches by their times."""
    point = profiles.point(replica.model, kind, replica.batch_size)
    if point is not None:
        return point.throughput_rps
    points = profiles.points(replica.model, kind)
    times = batch_times(replica.model, points, replica.batch_size, None)
    return replica.batch_size / times.seconds_of(replica.batch_size)


_GPUS: Final = re.compile(r"(?P<kind>[^:,]+)(:(?P<count>[0-9]+))?")
_MAX_ACCELERATORS: Final = 1000
_SHOWN: Final = 0.005
"""Fewer requests per second are shown as none."""
_LATE: Final = 0.95
"""A plan that serves all by its own measure and less than this part in time is remarked on."""

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
            help="Profiles by batch size: JSON of `pilotlight profile NAME --export FILE`, CSV "
            "(docs/placement.md), or JSON of iGniter's measurements. Repeat for several."
        ),
    ],
    rates: Annotated[
        Path,
        typer.Option(
            help="CSV of model, rps (requests per second), slo_ms (milliseconds) and, if wanted, "
            "max_batch_size."
        ),
    ],
    gpus: Annotated[
        str,
        typer.Option(
            help="KIND:COUNT, separated by commas, each a kind that was profiled; one KIND alone: "
            "as few as serve everything."
        ),
    ],
    planner: Annotated[
        str,
        typer.Option(
            help=f"Placement planners, separated by commas: {', '.join(planner_names())}."
        ),
    ] = PlacementName.PREDICTED_GOODPUT,
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

    Nothing is carried out. All plans are measured by the same two functions: what their batches can
    compute (profiled goodput), and what is answered within the SLO (predicted in time).
    """
    names = [name.strip() for name in planner.split(",")]
    problem = _problem(profiles, rates, gpus, names)
    params = PlanParams(has_shares=not no_shares, is_fair=fair)
    output = Output(json_)
    try:
        placements = [replace(_plan(name, problem, params), planner=name) for name in names]
    except InvalidPlacementInput as error:
        raise InvalidInput(error.problems) from error
    documents, measured = [], []
    for placement in placements:
        used = _used(problem, placement)
        lines = explain(placement, problem.workloads, used, problem.profiles) if explain_ else []
        measures = measure(placement, problem.workloads, used, problem.profiles, params)
        measured.append(measures)
        documents.append(_document(placement, measures, lines))
        _print(placement, lines, output)
    _print_measures(placements, measured, output)
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
        f"--planner must be one of {', '.join(planner_names())}, was {name!r}"
        for name in names
        if name not in planner_names()
    ]
    accelerators, open_kind = _accelerators(gpus, problems)
    kind = accelerators[0].kind if accelerators else "gpu"
    known = read_profile_files(profiles, kind, problems)
    workloads = read_rates_file(rates, problems)
    if workloads and (known.models or known.fits):
        checked = accelerators or accelerators_of(kind, 1)  # a wrong --gpus is said already
        for check in [
            planner_of(name).check if name in planner_names() else validate for name in names
        ]:
            try:
                check(workloads, checked, known)
            except InvalidPlacementInput as error:
                problems += error.problems
    if problems:
        raise InvalidInput(list(dict.fromkeys(problems)))
    return _Problem(workloads, accelerators, known, open_kind)


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


def _plan(planner: str, problem: _Problem, params: PlanParams) -> Placement:
    plan = planner_of(planner).plan
    if problem.open_kind is not None:
        return plan_fewest(plan, problem.workloads, problem.open_kind, problem.profiles, params)
    return plan(problem.workloads, problem.accelerators, problem.profiles, (), params)


def _used(problem: _Problem, placement: Placement) -> list[AcceleratorView]:
    if problem.open_kind is None:
        return problem.accelerators
    return [AcceleratorView(name, problem.open_kind) for name in placement.used]


def _document(
    placement: Placement, measures: Measures | None, explanation: Sequence[str]
) -> dict[str, Any]:
    """`goodput_rps` and `bound_rps` are by the planner's own measure."""
    return {
        "planner": placement.planner,
        "profiled_rps": None if measures is None else measures.profiled_rps,
        "in_time_rps": None if measures is None else measures.in_time_rps,
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
        **({"explanation": list(explanation)} if explanation else {}),
    }


def _print(placement: Placement, lines: Sequence[str], output: Output) -> None:
    output.table(
        ("ACCELERATOR", "MODEL", "BATCH", "SHARE", "REQ/S", "ABOVE CAPACITY"),
        [
            (
                each.accelerator,
                each.model,
                str(each.batch_size),
                "-" if each.share_pct is None else f"{each.share_pct:.3g} %",
                f"{each.rate_rps:.2f}",
                f"{excess:.2f}" if (excess := placement.excess_rps(each)) >= _SHOWN else "-",
            )
            for each in placement.replicas
        ],
        title=placement.planner,
    )
    if not lines:
        lines = [
            f"{each.model}: short by {each.shortfall_rps:.2f} req/s: {each.reason}"
            for each in placement.models
            if each.reason
        ]
        lines += [f"{each.model}: {each.note}" for each in placement.models if each.note]
    for line in lines:
        output.line(f"  {line}")
    output.line()


def _print_measures(
    placements: Sequence[Placement], measured: Sequence[Measures | None], output: Output
) -> None:
    """All plans by the same two measures, in requests per second."""
    output.table(
        ("PLANNER", "WANTED", "PROFILED GOODPUT", "PREDICTED IN TIME", "ACCELERATORS"),
        [
            (
                placement.planner,
                f"{sum(each.rate_rps for each in placement.models):.2f}",
                "-" if found is None else f"{found.profiled_rps:.2f}",
                "-" if found is None else f"{found.in_time_rps:.2f}",
                str(len(placement.used)),
            )
            for placement, found in zip(placements, measured, strict=True)
        ],
    )
    for placement, found in zip(placements, measured, strict=True):
        wanted = sum(each.rate_rps for each in placement.models)
        if found is not None and not placement.has_shortfall and found.in_time_rps < _LATE * wanted:
            output.line(
                f"{placement.planner}: all rates fit by its own measure, but only "
                f"{found.in_time_rps:.2f} of {wanted:.2f} req/s are predicted in time; compare "
                "--planner predicted-goodput"
            )


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
        planner_of(placement.planner).plan, problem.workloads, kind, problem.profiles, params
    )
    if enough.has_shortfall:
        return "more GPUs do not help"
    return f"{len(enough.used)} GPUs are needed"
