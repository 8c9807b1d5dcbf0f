"""`workflow`: deploy a workflow's file, run it, and read or cancel its runs."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from pilotlight.commands import flags
from pilotlight.commands.object_names import parse_model_names
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, NotFound, RequestFailed
from pilotlight.output import Output
from pilotlight.state_dir import StateDir
from registry.domain.model import ModelName

app = typer.Typer()
verbs = typer.Typer(name="workflow", no_args_is_help=True, help="Deploy and run workflows.")
app.add_typer(verbs)

Name = Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the workflow.")]


@verbs.command()
def deploy(
    file: Annotated[Path, typer.Argument(help="Python file that defines one @workflow.")],
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the workflow. Default: the file's, without .py.")
    ] = None,
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    gateway: flags.Gateway = None,
    json_: flags.Json = False,
) -> None:
    """Check a file and deploy its workflow; a wrong file changes nothing."""
    target = PlatformTarget.of(home, gateway=gateway)
    [workflow] = parse_model_names([name or file.stem.replace("_", "-")], namespace)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidInput([f"{file}: cannot be read: {error}"]) from error
    asyncio.run(_deploy(target, Output(json_), workflow, file, content))


@verbs.command()
def run(
    name: Name,
    arguments: Annotated[
        str, typer.Argument(help="JSON object of arguments, or @FILE.", metavar="ARGUMENTS")
    ] = "{}",
    *,
    scheduling: Annotated[
        str | None,
        typer.Option(
            help="speculative, greedy, round-robin, static, reactive, reactive-alone or auto. "
            "Default: the scheduler's."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--async", help="Print the run's id; do not wait for its result.")
    ] = False,
    deadline_ms: Annotated[
        int | None, typer.Option(min=1, help="Deadline of the run in milliseconds.")
    ] = None,
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    gateway: flags.Gateway = None,
    json_: flags.Json = False,
) -> None:
    """Run a workflow and print its result."""
    target = PlatformTarget.of(home, gateway=gateway)
    [workflow] = parse_model_names([name], namespace)
    headers = {"content-type": "application/json"}
    if scheduling is not None:
        headers["x-pilotlight-scheduling"] = scheduling
    if deadline_ms is not None:
        headers["x-pilotlight-deadline-ms"] = str(deadline_ms)
    if detach:
        headers["prefer"] = "respond-async"
    asyncio.run(_run(target, Output(json_), workflow, _read_arguments(arguments), headers))


@verbs.command()
def status(
    name: Name,
    run_id: Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")],
    *,
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    gateway: flags.Gateway = None,
    json_: flags.Json = False,
) -> None:
    """Show a run: its status, result or error, and its steps."""
    target = PlatformTarget.of(home, gateway=gateway)
    [workflow] = parse_model_names([name], namespace)
    asyncio.run(_status(target, Output(json_), workflow, run_id))


@verbs.command()
def cancel(
    name: Name,
    run_id: Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")],
    *,
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    gateway: flags.Gateway = None,
    json_: flags.Json = False,
) -> None:
    """Cancel a run; steps that are queued are taken back."""
    target = PlatformTarget.of(home, gateway=gateway)
    [workflow] = parse_model_names([name], namespace)
    asyncio.run(_cancel(target, Output(json_), workflow, run_id))


@verbs.command()
def delete(
    name: Name,
    *,
    namespace: flags.Namespace = None,
    home: flags.Home = None,
    gateway: flags.Gateway = None,
    json_: flags.Json = False,
) -> None:
    """Delete a workflow; runs under way go on."""
    target = PlatformTarget.of(home, gateway=gateway)
    [workflow] = parse_model_names([name], namespace)
    asyncio.run(_delete(target, Output(json_), workflow))


@verbs.command()
def demo(*, home: flags.Home = None, json_: flags.Json = False) -> None:
    """Start a platform, run two workflows by two policies, kill a pod, report what is seen."""
    from pilotlight.demo.workflows import run_workflow_demo  # imports the platform

    run_workflow_demo(StateDir.of(home), Output(json_))


def workflow_path(name: ModelName, rest: str = "") -> str:
    """Path of a workflow at the gateway."""
    prefix = f"/serving/{quote(name.namespace)}/{quote(name.name)}"
    return f"{prefix}/v1/workflows/{quote(name.name)}{rest}"


def _read_arguments(text: str) -> bytes:
    """Raises InvalidInput."""
    try:
        content = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
        arguments = json.loads(content)
    except OSError as error:
        raise InvalidInput([f"cannot read {text[1:]}: {error}"]) from error
    except ValueError as error:
        raise InvalidInput([f"ARGUMENTS must be a JSON object or @FILE: {error}"]) from error
    if not isinstance(arguments, dict):
        raise InvalidInput([f"ARGUMENTS must be a JSON object, was {type(arguments).__name__}"])
    return content.encode()


def read_response(response: httpx.Response, what: str) -> Any:
    """The response's JSON. Raises InvalidInput for 400, NotFound for 404, else RequestFailed."""
    try:
        document = response.json()
    except ValueError:
        document = {"error": response.text[:500]}
    if response.is_success:
        return document
    text = document.get("error", document) if isinstance(document, dict) else document
    where = ""
    if isinstance(document, dict) and document.get("line") and "(line" not in str(text):
        where = f" (line {document['line']})"
    message = f"{what}: {text}{where}"
    if response.status_code in (400, 413):
        raise InvalidInput([message])
    if response.status_code == 404:
        raise NotFound(message)
    raise RequestFailed(f"{message} (HTTP {response.status_code})")


async def _deploy(
    target: PlatformTarget, output: Output, name: ModelName, file: Path, content: bytes
) -> None:
    response = await target.request_gateway("PUT", workflow_path(name), content=content)
    document = read_response(response, str(file))
    output.result(document, [f"workflow/{name.name} {document['outcome']}"])


async def _run(
    target: PlatformTarget, output: Output, name: ModelName, body: bytes, headers: dict[str, str]
) -> None:
    path = workflow_path(name, ":run")
    response = await target.request_gateway("POST", path, content=body, headers=headers)
    document = read_response(response, str(name))
    shown = document["id"] if response.status_code == 202 else json.dumps(
        document["result"], ensure_ascii=False, indent=2
    )  # fmt: skip
    output.result(document, [shown])
    if response.status_code != 202:
        output.note(f"run: {document['id']}")


async def _status(target: PlatformTarget, output: Output, name: ModelName, run_id: str) -> None:
    path = workflow_path(name, f"/runs/{quote(run_id, safe='')}")
    document = read_response(await target.request_gateway("GET", path), str(name))
    output.result(document, [f"run     {document['id']}", f"status  {document['status']}"])
    if output.as_json:
        return
    if "error" in document:
        output.line(f"error   {document['error']['message']}")
    if "result" in document:
        output.line(f"result  {json.dumps(document['result'], ensure_ascii=False)}")
    rows = [
        [str(step["step"]), step["model"], step["state"], step["pod"] or "-",
         "yes" if step["predicted"] else "no", _seconds(step.get("sent_s")),
         _seconds(step.get("ended_s"))]
        for step in document.get("steps", ())
    ]  # fmt: skip
    if rows:
        output.line()
        output.table(["STEP", "MODEL", "STATE", "POD", "PREDICTED", "SENT", "ENDED"], rows)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


async def _cancel(target: PlatformTarget, output: Output, name: ModelName, run_id: str) -> None:
    path = workflow_path(name, f"/runs/{quote(run_id, safe='')}")
    document = read_response(await target.request_gateway("DELETE", path), str(name))
    outcome = document["outcome"]
    said = outcome if outcome == "cancelled" else f"had ended: {outcome}"
    output.result(document, [f"run {document['id']} {said}"])


async def _delete(target: PlatformTarget, output: Output, name: ModelName) -> None:
    response = await target.request_gateway("DELETE", workflow_path(name))
    document = read_response(response, str(name))
    output.result(document, [f'workflow "{name.name}" deleted'])


async def print_workflows(target: PlatformTarget, output: Output, namespace: str) -> None:
    """The namespace's workflows as a table or JSON."""
    path = f"/serving/{quote(namespace)}/all/v1/workflows"
    found = read_response(await target.request_gateway("GET", path), namespace)["workflows"]
    if output.as_json:
        output.result(found)
        return
    rows = [
        [each["namespace"], each["name"], each["kind"], _parameters(each["parameters"]),
         f"{each['deadline_s']:g} s" if each["deadline_s"] else "-"]
        for each in found
    ]  # fmt: skip
    output.table(["NAMESPACE", "NAME", "KIND", "PARAMETERS", "DEADLINE"], rows)


def _parameters(parameters: list[dict[str, Any]]) -> str:
    return (
        ", ".join(each["name"] + ("" if each["required"] else "?") for each in parameters or ())
        or "-"
    )
