"""`predict` and `explain`: one request through the gateway, and how the gateway routed it."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from pilotlight.commands import flags
from pilotlight.commands.kinds import parse_model_names
from pilotlight.commands.target import PlatformTarget, error_text
from pilotlight.commands.workflow import explain_run
from pilotlight.errors import InvalidInput, NotFound, RequestFailed
from pilotlight.output import Output
from registry.domain.model import ModelName
from registry.policy_names import ROUTING

_TEXT_HINT = "; TEXT is sent as texts: give numbers with --data '{\"instances\": [[…]]}', or @FILE"
_SHOWN_HEADERS = ("x-pilotlight-", "x-request-id", "server-timing", "retry-after")

app = typer.Typer()


def _complete_policy(incomplete: str) -> list[str]:
    return [each for each in ROUTING if each.startswith(incomplete)]


@app.command()
@flags.addresses(*flags.GATEWAY)
async def predict(
    target: PlatformTarget,
    output: Output,
    name: flags.Model,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...")] = None,
    *,
    image: Annotated[
        list[Path], typer.Option(help="Image file to send. Repeat it to send one batch.")
    ] = [],  # noqa: B006 - typer copies it
    data: Annotated[
        str | None, typer.Option(help="Whole request body: JSON, @FILE, or - for standard input.")
    ] = None,
    v2: Annotated[
        bool, typer.Option("--v2/--v1", help="Use the Open Inference Protocol (V2), or V1.")
    ] = False,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Routing policy of this request. Default: the model's.",
            autocompletion=_complete_policy,
        ),
    ] = None,
    deadline_ms: Annotated[
        int | None, typer.Option(min=1, help="Deadline of the request in milliseconds.")
    ] = None,
    namespace: flags.Namespace = None,
) -> None:
    """Send one inference request through the gateway and print the response."""
    [model] = parse_model_names([name], namespace)
    protocol = "v2" if v2 else "v1"
    headers = {"content-type": "application/json"}
    if policy is not None:
        headers["x-pilotlight-policy"] = policy
    if deadline_ms is not None:
        headers["x-pilotlight-deadline-ms"] = str(deadline_ms)
    body = _request_body(protocol, texts or [], image, data)
    path = _request_path(model, protocol)
    await _predict(target, output, model, path, body, headers, is_text=bool(texts))


@app.command()
@flags.addresses(*flags.GATEWAY)
async def explain(
    target: PlatformTarget,
    output: Output,
    request_id: Annotated[
        str, typer.Argument(help="The x-request-id header of the response, or a workflow's run.")
    ],
    *,
    namespace: flags.Namespace = None,
) -> None:
    """Show how a request, or each step of a workflow's run, was placed: candidates, estimates."""
    await _explain(target, output, request_id, namespace or "default")


def _request_path(name: ModelName, protocol: str) -> str:
    base = (
        f"/serving/{quote(name.namespace)}/{quote(name.name)}/{protocol}/models/{quote(name.name)}"
    )
    return f"{base}:predict" if protocol == "v1" else f"{base}/infer"


def _request_body(
    protocol: str, texts: Sequence[str], images: Sequence[Path], data: str | None
) -> bytes:
    """The JSON body from the one of texts, images and data that is given; raises InvalidInput."""
    given = [bool(texts), bool(images), data is not None]
    if sum(given) != 1:
        raise InvalidInput(["give one of: TEXT…, --image FILE, --data JSON or --data @FILE"])
    if data is not None:
        return flags.read_json("--data", data)[0]
    if texts:
        values, tensor = list(texts), "text"
    else:
        values, tensor = [_read_image(path) for path in images], "image"
    if protocol == "v2":
        body: dict[str, Any] = {
            "inputs": [
                {"name": tensor, "shape": [len(values)], "datatype": "BYTES", "data": values}
            ]
        }
    elif texts:
        body = {"instances": values}
    else:
        body = {"instances": [{"image_bytes": {"b64": value}} for value in values]}
    return json.dumps(body, ensure_ascii=False).encode()


def _read_image(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise InvalidInput([f"--image: cannot read {path}: {error}"]) from error


async def _predict(
    target: PlatformTarget,
    output: Output,
    name: ModelName,
    path: str,
    body: bytes,
    headers: dict[str, str],
    *,
    is_text: bool,
) -> None:
    """Print the response on standard output, the headers about its routing on standard error."""
    response = await target.request_gateway("POST", path, content=body, headers=headers)
    shown = {
        key: value for key, value in response.headers.items() if key.startswith(_SHOWN_HEADERS)
    }
    if not response.is_success:
        kind = NotFound if response.status_code == 404 else RequestFailed
        pod_refused = response.status_code == 400 and "x-pilotlight-predict-pod" in response.headers
        hint = _TEXT_HINT if is_text and pod_refused else ""
        raise kind(f"{name}: {error_text(response)}{hint}")
    document = response.json()
    if output.as_json:
        output.result({"status": response.status_code, "headers": shown, "body": document})
        return
    output.result(document, _response_lines(document))
    for key in sorted(shown):
        output.note(f"{key}: {shown[key]}")


def _response_lines(body: Any) -> list[str]:
    """A response for a terminal: one line per prediction (V1) or output tensor (V2)."""
    if isinstance(body, dict) and "predictions" in body:
        return [_short(value) for value in body["predictions"]]
    if isinstance(body, dict) and "outputs" in body:
        return [
            f"{each['name']} {each['datatype']} {each['shape']}: {_short(each['data'])}"
            for each in body["outputs"]
        ]
    return [_short(body)]


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) > 8 and isinstance(value[0], float):
        return f"[{', '.join(f'{each:.4f}' for each in value[:6])}, … {len(value)} numbers]"
    return json.dumps(value, ensure_ascii=False)


async def _explain(target: PlatformTarget, output: Output, request_id: str, namespace: str) -> None:
    """Of a request; where the gateway knows none, of a run."""
    path = f"/pilotlight/v1/explain/{quote(request_id, safe='')}"
    response = await target.request_gateway("GET", path)
    if response.status_code == 404:
        try:
            await explain_run(target, output, namespace, request_id)
        except (NotFound, RequestFailed):
            raise NotFound(
                f"the gateway has no record of request {request_id!r}; it keeps only the most "
                "recent requests, under the x-request-id header of the response, and only its "
                f"own: {error_text(response)}; nor is there a run of that id in namespace "
                f"{namespace}"
            ) from None
        return
    if not response.is_success:
        raise RequestFailed(error_text(response))
    document = response.json()
    if output.as_json:
        output.result(document)
        return
    decision, outcome = document.get("decision") or {}, document.get("outcome") or {}
    output.result(
        document,
        [
            f"request  {document.get('request_id')}",
            f"status   {outcome.get('status', 'no response yet')}",
            f"model    {document.get('model')}",
            f"policy   {document.get('policy')}",
            f"summary  {document.get('summary')}",
            *(f"decision {key} = {_cell(value)}" for key, value in decision.items()),
        ],
    )
    selection = document.get("selection")
    if selection is not None:
        _print_selection(output, selection)
    for part, title in (
        ("options", "Ways there were; auto takes the smallest cost"),
        ("candidates", "Pods at that time"),
    ):
        rows = document.get(part) or []
        columns = list(dict.fromkeys(key for each in rows for key in each))
        if rows:
            _print_rows(output, columns, rows, title)


def _print_selection(output: Output, selection: dict[str, Any]) -> None:
    """How the variant of an application's request was chosen."""
    output.line()
    for key, value in selection.items():
        if key not in ("candidates", "left_out", "posterior"):
            output.line(f"selection {key} = {_cell(value)}")
    if selection["posterior"] is not None:
        shares = sorted(selection["posterior"].items(), key=lambda each: (-each[1], each[0]))
        output.line("likely classes: " + ", ".join(f"{name} {share:.2f}" for name, share in shares))
    columns = ("variant", "profiled_accuracy", "expected_accuracy", "soonest_s", "soonest_utility")
    _print_rows(output, columns, selection["candidates"], "Variants")


def _print_rows(
    output: Output, columns: Sequence[str], rows: Sequence[dict[str, Any]], title: str
) -> None:
    output.line()
    output.table(
        [column.upper().replace("_", " ") for column in columns],
        [[_cell(each.get(column)) for column in columns] for each in rows],
        title=title,
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
