"""`workflow`: deploy a workflow's file, run it, and read, explain or cancel its runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer

from pilotlight.commands import flags
from pilotlight.commands.kinds import parse_model_names, shown_name
from pilotlight.commands.target import PlatformTarget, error_with_line, read_response, text_of_error
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output
from registry.domain.model import ModelName

app = typer.Typer()
verbs = typer.Typer(name="workflow", no_args_is_help=True, help="Deploy and run workflows.")
app.add_typer(verbs)

_ANY = "-"
"""Any workflow, where a run is named by its id alone."""
Name = Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the workflow.")]


@verbs.command()
@flags.addresses(*flags.GATEWAY)
async def deploy(
    target: PlatformTarget,
    output: Output,
    file: Annotated[Path, typer.Argument(help="Python file that defines one @workflow.")],
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the workflow. Default: the file's, without .py.")
    ] = None,
    namespace: flags.Namespace = None,
) -> None:
    """Check a file and deploy its workflow; a wrong file changes nothing."""
    [workflow] = parse_model_names([name or file.stem.replace("_", "-")], namespace)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidInput([f"{file}: cannot be read: {error}"]) from error
    response = await target.request_gateway("PUT", workflow_path(workflow), content=content)
    document = read_response(response, str(file))
    output.result(document, [f"workflow/{shown_name(workflow)} {document['outcome']}"])


@verbs.command()
@flags.addresses(*flags.GATEWAY)
async def run(
    target: PlatformTarget,
    output: Output,
    name: Name,
    arguments: Annotated[
        str,
        typer.Argument(
            help="JSON object of arguments, @FILE, or - for standard input.", metavar="ARGUMENTS"
        ),
    ] = "{}",
    *,
    scheduling: Annotated[
        str | None,
        typer.Option(
            help="Scheduling policy: speculative, greedy or auto. Default: the scheduler's."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--async", help="Print the run's id; do not wait for its result.")
    ] = False,
    deadline_ms: Annotated[
        int | None, typer.Option(min=1, help="Deadline of the run in milliseconds.")
    ] = None,
    namespace: flags.Namespace = None,
) -> None:
    """Run a workflow and print its result."""
    [workflow] = parse_model_names([name], namespace)
    headers = {"content-type": "application/json"}
    if scheduling is not None:
        headers["x-pilotlight-scheduling"] = scheduling
    if deadline_ms is not None:
        headers["x-pilotlight-deadline-ms"] = str(deadline_ms)
    if detach:
        headers["prefer"] = "respond-async"
    body, given = flags.read_json("ARGUMENTS", arguments)
    if not isinstance(given, dict):
        raise InvalidInput([f"ARGUMENTS must be a JSON object, was {type(given).__name__}"])
    path = workflow_path(workflow, ":run")
    response = await target.request_gateway("POST", path, content=body, headers=headers)
    if not response.is_success and (run_id := response.headers.get("x-pilotlight-run")):
        raise _failure_of_run(output, workflow, run_id, response)
    document = read_response(response, str(workflow))
    shown = (
        document["id"]
        if response.status_code == 202
        else json.dumps(document["result"], ensure_ascii=False, indent=2)
    )
    output.result(document, [shown])
    if response.status_code != 202:
        output.note(f"run: {document['id']}")


@verbs.command()
@flags.addresses(*flags.GATEWAY)
async def status(
    target: PlatformTarget,
    output: Output,
    words: Annotated[
        list[str],
        typer.Argument(help="The run's id, after the workflow's name if wanted.", metavar="RUN"),
    ],
    *,
    namespace: flags.Namespace = None,
) -> None:
    """Show a run as `explain` does: result or error, steps and plans, what its code printed."""
    if len(words) > 2:
        raise InvalidInput([f"give RUN, or NAME and RUN, were {len(words)} words"])
    *names, run_id = words
    workflow = ModelName(namespace or "default", _ANY)
    if names:
        [workflow] = parse_model_names(names, namespace)
    path = workflow_path(workflow, f"/runs/{quote(run_id, safe='')}")
    document = read_response(await target.request_gateway("GET", path), str(workflow))
    show_run(output, document)


@verbs.command()
@flags.addresses(*flags.GATEWAY)
async def cancel(
    target: PlatformTarget,
    output: Output,
    name: Name,
    run_id: Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")],
    *,
    namespace: flags.Namespace = None,
) -> None:
    """Cancel a run; steps that are queued are taken back."""
    [workflow] = parse_model_names([name], namespace)
    path = workflow_path(workflow, f"/runs/{quote(run_id, safe='')}")
    document = read_response(await target.request_gateway("DELETE", path), str(workflow))
    outcome = document["outcome"]
    said = outcome if outcome == "cancelled" else f"had ended: {outcome}"
    output.result(document, [f"run {document['id']} {said}"])


@verbs.command()
@flags.addresses(*flags.GATEWAY)
async def delete(
    target: PlatformTarget, output: Output, name: Name, *, namespace: flags.Namespace = None
) -> None:
    """Delete a workflow; runs under way go on."""
    [workflow] = parse_model_names([name], namespace)
    response = await target.request_gateway("DELETE", workflow_path(workflow))
    document = read_response(response, str(workflow))
    output.result(document, [f'workflow "{shown_name(workflow)}" deleted'])


def workflow_path(name: ModelName, rest: str = "") -> str:
    prefix = f"/serving/{quote(name.namespace)}/{quote(name.name)}"
    return f"{prefix}/v1/workflows/{quote(name.name)}{rest}"


def print_printed(output: Output, document: Mapping[str, Any]) -> None:
    if text := document.get("printed"):
        output.line()
        output.line("printed:")
        for line in str(text).splitlines():
            output.line(f"  {line}")


def _failure_of_run(
    output: Output, name: ModelName, run_id: str, response: httpx.Response
) -> RequestFailed:
    """The error of a run that began, whatever its status: the input was taken."""
    output.note(f"run: {run_id}; `pilotlight explain {run_id}` shows its steps and what it printed")
    document = response.json()
    failure = RequestFailed(f"{name}: {text_of_error(document)} (HTTP {response.status_code})")
    failure.partial_result = {"id": run_id, "reason": document.get("reason")}
    return failure


async def explain_run(target: PlatformTarget, output: Output, namespace: str, run_id: str) -> None:
    """Raises NotFound."""
    path = f"/serving/{quote(namespace)}/all/v1/workflows/-/runs/{quote(run_id, safe='')}"
    show_run(output, read_response(await target.request_gateway("GET", path), run_id))


_STEP_COLUMNS: Final = (
    "STEP", "MODEL", "PREDICTED", "PLANNED AT", "RAN AT", "PLANNED, S", "ACTUAL, S", "START",
    "CANDIDATES (WAIT + LOAD + COMPUTE, S)",
)  # fmt: skip


def show_run(output: Output, document: dict[str, Any]) -> None:
    """Print a run's steps, their candidates and loads ahead."""
    output.result(document, [_head(document)])
    if output.as_json:
        return
    output.table(_STEP_COLUMNS, [_row(document, step) for step in document["steps"]])
    if "result" in document:
        output.line(f"result: {json.dumps(document['result'], ensure_ascii=False)}")
    if "error" in document:
        output.line(f"error: {error_with_line(document['error'])}")
    for load in document["preloads"]:
        kind = "predicted" if load["predicted"] else "known"
        ended = "not ended" if load["ended_s"] is None else f"{load['ended_s']:.3f}"
        output.line(
            f"ahead: {load['model']} at {load['pod']} for a {kind} step, "
            f"{load['begun_s']:.3f} to {ended} s"
        )
    print_printed(output, document)


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
