"""`predict` and `explain`: one request through the gateway, and why it went where it went."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pilotlight.errors import InvalidInput, NotFound, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from pilotlight.commands.target import PlatformTarget
    from pilotlight.output import Output
    from registry.domain.model import ModelName

_TOLD = ("x-pilotlight-", "x-request-id", "server-timing", "retry-after")


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """What to ask a model, and how."""

    texts: Sequence[str] = ()
    images: Sequence[Path] = ()
    data: str | None = None
    """A whole request body as JSON, or `@file`."""
    protocol: str = "v1"
    policy: str | None = None
    deadline_ms: int | None = None


def request_path(name: ModelName, protocol: str) -> str:
    """The path that names a model in any namespace."""
    base = (
        f"/serving/{quote(name.namespace)}/{quote(name.name)}/{protocol}/models/{quote(name.name)}"
    )
    return f"{base}:predict" if protocol == "v1" else f"{base}/infer"


def request_body(question: PredictionRequest) -> bytes:
    """The body in the protocol asked for; `InvalidInput` where it is none."""
    given = [bool(question.texts), bool(question.images), question.data is not None]
    if sum(given) != 1:
        raise InvalidInput(["give one of: TEXT…, --image FILE, --data JSON or --data @FILE"])
    if question.data is not None:
        return _data(question.data)
    if question.texts:
        values, tensor = list(question.texts), "text"
    else:
        values, tensor = [_image(path) for path in question.images], "image"
    if question.protocol == "v2":
        body: dict[str, Any] = {
            "inputs": [
                {"name": tensor, "shape": [len(values)], "datatype": "BYTES", "data": values}
            ]
        }
    elif question.texts:
        body = {"instances": values}
    else:
        body = {"instances": [{"image_bytes": {"b64": value}} for value in values]}
    return json.dumps(body, ensure_ascii=False).encode()


def _data(data: str) -> bytes:
    try:
        text = Path(data[1:]).read_text(encoding="utf-8") if data.startswith("@") else data
        text = sys.stdin.read() if data == "-" else text
        json.loads(text)
    except OSError as error:
        raise InvalidInput([f"--data: cannot read {data[1:]}: {error}"]) from error
    except ValueError as error:
        raise InvalidInput([f"--data must be JSON or @FILE: {error}"]) from error
    return text.encode()


def _image(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise InvalidInput([f"--image: cannot read {path}: {error}"]) from error


def error_text(response: httpx.Response) -> str:
    """What an answer says went wrong, with the status."""
    try:
        document = response.json()
        text = str(document["error"]) if isinstance(document, dict) else str(document)
    except (ValueError, KeyError):
        text = response.text.strip()[:500]
    return f"{text or response.reason_phrase} (HTTP {response.status_code})"


async def predict(
    target: PlatformTarget, output: Output, name: ModelName, question: PredictionRequest
) -> None:
    """Ask a model and print its answer; where it ran and how long it took go to stderr."""
    headers = {"content-type": "application/json"}
    if question.policy is not None:
        headers["x-pilotlight-policy"] = question.policy
    if question.deadline_ms is not None:
        headers["x-pilotlight-deadline-ms"] = str(question.deadline_ms)
    response = await target.ask_gateway(
        "POST",
        request_path(name, question.protocol),
        content=request_body(question),
        headers=headers,
    )
    told = {key: value for key, value in response.headers.items() if key.startswith(_TOLD)}
    if not response.is_success:
        kind = NotFound if response.status_code == 404 else RequestFailed
        raise kind(f"{name}: {error_text(response)}")
    body = response.json()
    if output.as_json:
        output.result({"status": response.status_code, "headers": told, "body": body})
        return
    output.result(body, answer_lines(body))
    for key in sorted(told):
        output.note(f"{key}: {told[key]}")


def answer_lines(body: Any) -> list[str]:
    """An answer for eyes: one line per prediction, or per output of the V2 protocol."""
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


async def explain(target: PlatformTarget, output: Output, request_id: str) -> None:
    """Print the candidates a request had, their estimates, and why one was taken."""
    path = f"/pilotlight/v1/explain/{quote(request_id, safe='')}"
    response = await target.ask_gateway("GET", path)
    if response.status_code == 404:
        raise NotFound(
            f"the gateway does not remember request {request_id!r}; it keeps the latest ones, "
            "and the id is the answer's x-request-id header"
        )
    if not response.is_success:
        raise RequestFailed(error_text(response))
    document = response.json()
    if output.as_json:
        output.result(document)
        return
    decision = document.get("decision") or {}
    output.result(
        document,
        [
            f"request  {document.get('request_id')}",
            f"model    {document.get('model')}",
            f"policy   {document.get('policy')}",
            *(f"decision {key} = {_cell(value)}" for key, value in decision.items()),
        ],
    )
    for part, title in (("options", "What was weighed"), ("candidates", "The pods at that time")):
        rows = document.get(part) or []
        columns = list(dict.fromkeys(key for each in rows for key in each))
        if rows:
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
