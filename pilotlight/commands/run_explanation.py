"""Why the steps of a workflow's run went where they went, and when: `explain` of a run."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from pilotlight.commands.target import PlatformTarget
from pilotlight.commands.workflow import error_text, print_printed, read_response
from pilotlight.errors import InvalidInput, requires_extra
from pilotlight.output import Output

SUFFIXES = (".svg", ".png", ".pdf")


def check_plot(plot: Path | None) -> None:
    """Raises InvalidInput for a file of another kind."""
    if plot is not None and plot.suffix not in SUFFIXES:
        raise InvalidInput([f"--plot must end in {', '.join(SUFFIXES)}, was {plot.name!r}"])


async def explain_run(
    target: PlatformTarget, output: Output, namespace: str, run_id: str, plot: Path | None
) -> None:
    """Print a run's steps, their candidates and loads ahead, and draw it. Raises NotFound."""
    path = f"/serving/{quote(namespace)}/all/v1/workflows/-/runs/{quote(run_id, safe='')}"
    document = read_response(await target.request_gateway("GET", path), run_id)
    if plot is not None:
        _draw(document, plot)
    output.result(document, [_head(document)])
    if output.as_json:
        return
    output.table(
        [
            "STEP",
            "MODEL",
            "PREDICTED",
            "PLANNED AT",
            "RAN AT",
            "PLANNED, S",
            "ACTUAL, S",
            "START",
            "CANDIDATES (WAIT + LOAD + COMPUTE, S)",
        ],
        [_row(document, step) for step in document["steps"]],
    )
    if "error" in document:
        output.line(f"error: {error_text(document['error'])}")
    for load in document["preloads"]:
        kind = "predicted" if load["predicted"] else "known"
        ended = "not ended" if load["ended_s"] is None else f"{load['ended_s']:.3f}"
        output.line(
            f"ahead: {load['model']} at {load['pod']} for a {kind} step, "
            f"{load['begun_s']:.3f} to {ended} s"
        )
    print_printed(output, document)
    if plot is not None:
        output.note(f"plot: {plot}")


def _head(document: dict[str, Any]) -> str:
    return (
        f"run {document['id']} of {document['namespace']}/{document['workflow']}: "
        f"{document['status']}, {document['scheduling']}, {len(document['plans'])} plans, "
        f"resumed {document['resumptions']} times"
    )


def _row(document: dict[str, Any], step: dict[str, Any]) -> list[str]:
    planned = _latest_plan(document, step["step"])
    actual = "-"
    if "ended_s" in step and "sent_s" in step:
        actual = f"{step['sent_s']:.3f} to {step['ended_s']:.3f}"
    return [
        str(step["step"]),
        step["model"],
        "yes" if step["predicted"] else "no",
        planned.get("pod", "-"),
        step["pod"] or "-",
        f"{planned['start_s']:.3f} to {planned['end_s']:.3f}" if planned else "-",
        actual,
        step.get("start", "-"),
        "; ".join(map(_candidate, planned.get("candidates", ()))) or "-",
    ]


def _candidate(candidate: dict[str, Any]) -> str:
    parts = (candidate["free_s"], candidate["load_s"], candidate["compute_s"])
    return f"{candidate['pod']}: " + " + ".join(f"{part:.3g}" for part in parts)


def _latest_plan(document: dict[str, Any], number: int) -> dict[str, Any]:
    """The step in the last plan that was made before it was sent; empty without one."""
    found: dict[str, Any] = {}
    sent_s = document["steps"][number].get("sent_s", float("inf"))
    for plan in document["plans"]:
        if number < len(plan["steps"]) and plan["at_s"] <= sent_s:
            found = plan["steps"][number]
    return found


def _draw(document: dict[str, Any], plot: Path) -> None:
    with requires_extra("load"):
        from load.report.machine_plots import run_timeline

    try:
        run_timeline(document).savefig(plot)
    except (OSError, ValueError) as error:
        raise InvalidInput([f"--plot {plot}: {error}"]) from error
