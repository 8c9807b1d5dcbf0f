"""Sends steps through the gateway as ordinary V2 requests, to the pod that the plan names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

import orjson

from common.http_client import HttpClient, Response, split_url
from common.http_connection import HttpError, NotConnected, TooLarge
from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import LENGTH_HEADER
from common.inference_protocol.tensors import BYTES
from common.pod_responses import parse_server_timing
from common.pod_secret import PodSecret
from common.tls import PartTls
from registry.domain.model import ModelName
from workflows.errors import InputsLost, StepError, StepLost
from workflows.runner import STREAM, source_of
from workflows.values import (
    CompletionStream,
    StoredTensor,
    body_outputs,
    completion_body,
    infer_body,
    is_v2_body,
    read_outputs,
    single_item,
    tensor_of,
)

POD_HEADER: Final = "x-pilotlight-place-at"
"""Names the pod that a step is placed at; gateways honour it from schedulers only."""
ANY_POD: Final = "*"
"""In place of a pod's name: the gateway chooses the pod, in whose step queue the step waits."""

RUN_HEADER: Final = "x-pilotlight-run"
"""Asks a pod to keep large outputs for the run; gateways forward it from schedulers only."""
FOLLOWING_HEADER: Final = "x-pilotlight-following-ms"
"""What the step's run is expected to take after it: of two steps with one deadline, the pod first
runs the one that more is to follow."""

_MAX_TRIAL_PAUSE_S: Final = 10.0
"""Gateways let a request that lost two pods by chance be tried again after 5 s. A longer pause
says that it is held for the cause."""


@dataclass(frozen=True, slots=True)
class StepCall:
    """One attempt of a step."""

    model: ModelName
    tensors: Sequence[StoredTensor]
    request_id: str
    pod: str
    """Empty: where the gateway chooses."""
    left_s: float
    """Until the run's deadline."""
    run: str = ""
    """The run, whose large outputs stay at the pod; empty: none does."""
    protocol: str = ""
    """See `RunStep`. Of a graph's step the one tensor is the request's body."""
    following_s: float = 0.0
    """What the run is expected to take after this step, which is due that long before the run's
    deadline (Zhang et al. 2025 run batches by arrival)."""


@dataclass(frozen=True, slots=True)
class StepResponse:
    outputs: Mapping[str, StoredTensor]
    pod: str
    start: str
    stages_ms: Mapping[str, float]
    batch: str
    """Names its inference within the pod."""


class StepClient:
    """One client of one gateway."""

    def __init__(
        self,
        gateway_url: str,
        secret: PodSecret,
        *,
        max_output_bytes: int,
        tls: PartTls | None = None,
    ) -> None:
        self._address, _ = split_url(gateway_url)
        self._secret = secret
        self._client = HttpClient(max_body_bytes=max_output_bytes, tls=tls)

    def close(self) -> None:
        self._client.close()

    async def infer(self, call: StepCall, on_text: Callable[[str], None]) -> StepResponse:
        """Run one step; `on_text` gets the text of a streamed one.

        Raises StepError, StepLost, InputsLost.
        """
        model = call.model
        stream = CompletionStream(on_text) if call.protocol == STREAM else None
        path, headers, body = _request(call)
        headers |= {
            "x-request-id": call.request_id,
            "x-pilotlight-deadline-ms": f"{max(1.0, call.left_s * 1000):.0f}",
            **self._secret.headers,
        }
        if call.following_s > 0.0:
            headers[FOLLOWING_HEADER] = f"{call.following_s * 1000:.0f}"
        if call.run and not call.protocol:
            headers[RUN_HEADER] = call.run
        headers[POD_HEADER] = call.pod or ANY_POD
        try:
            async with self._client.stream("POST", self._address, path, headers, body) as begun:
                if stream is not None and begun.status == 200:
                    async for chunk in begun.chunks():
                        stream.feed(chunk)
                response = Response(begun.status, begun.headers, await begun.read())
        except TooLarge as error:
            raise StepError(
                f"the outputs of model {model.name} are too large: {error}", "output-too-large", 413
            ) from error
        except HttpError as error:
            raise StepLost(
                f"the gateway gave no response: {error}",
                was_sent=not isinstance(error, NotConnected),
            ) from error
        sent = frozenset(each.kept.identity for each in call.tensors if each.kept is not None)
        if response.status == 424 and sent:
            raise InputsLost(response.body[:300].decode("utf-8", "replace"), sent)
        if response.status != 200:
            failure = _failure(model, response.status, response.headers, response.body)
            if call.protocol in ("", STREAM) or isinstance(failure, StepLost):
                raise failure
        return StepResponse(
            stream.outputs() if stream is not None else _outputs(call, response),
            response.headers.get("x-pilotlight-pod", ""),
            response.headers.get("x-pilotlight-start", "warm"),
            parse_server_timing(response.headers.get("server-timing", "")),
            response.headers.get("x-pilotlight-batch", ""),
        )


def _request(call: StepCall) -> tuple[str, dict[str, str], bytes]:
    """Path, headers and body of a step's request. Raises StepError."""
    name = quote(call.model.name)
    path = f"/serving/{quote(call.model.namespace)}/{name}"
    if call.protocol == STREAM:
        headers = {"content-type": "application/json"}
        body = completion_body(call.model.name, call.tensors, call.request_id)
        return f"{path}/openai/v1/completions", headers, body
    if not call.protocol:
        encoded = infer_body(call.tensors)
        return f"{path}/v2/models/{name}/infer", dict(encoded.headers), encoded.content
    try:
        body = single_item(call.tensors[0])
    except InvalidRequest as error:
        raise StepError(str(error), "bad-input", 400) from error
    is_v1 = call.protocol == "v1" or (call.protocol != "v2" and not is_v2_body(body))
    path += f"/v1/models/{name}:predict" if is_v1 else f"/v2/models/{name}/infer"
    return path, {"content-type": "application/json"}, body


def _outputs(call: StepCall, response: Response) -> dict[str, StoredTensor]:
    """Raises StepError."""
    if call.protocol:
        return body_outputs(response.status, response.body)
    try:
        return read_outputs(response.body, response.headers.get(LENGTH_HEADER))
    except InvalidRequest as error:
        raise StepError(str(error), "bad-output", 502) from error


def _failure(
    model: ModelName, status: int, headers: Mapping[str, str], body: bytes
) -> StepError | StepLost:
    try:
        error = orjson.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode("utf-8", "replace")
    reason = headers.get("x-pilotlight-reason", "step-failed")
    if status in (502, 503) and reason in {"pod-lost", "not-taken", "draining", "not-ready"}:
        return StepLost(f"{reason}: {text}", was_sent=reason in {"pod-lost", "not-taken"})
    pause_s = _seconds(headers.get("retry-after", ""))
    if reason == "lost-pods" and 0 < pause_s <= _MAX_TRIAL_PAUSE_S:
        return StepLost(f"{reason}: {text}", pause_s=pause_s)
    refusal = headers.get("x-pilotlight-not-executed")
    if refusal == "step-queue" or (refusal == "no-memory" and "retry-after" in headers):
        return StepLost(f"{refusal}: {text}", was_sent=False)
    return StepError(f"model {model.name}: {text}", reason, status)


def _seconds(header: str) -> float:
    return float(header) if header.isdecimal() else 0.0


def resolved_inputs(
    inputs: Mapping[str, Any], outputs_of: Mapping[int, Mapping[str, StoredTensor]]
) -> list[StoredTensor]:
    """The tensors of a call, references replaced by outputs. Raises StepError."""
    found = []
    for name, argument in inputs.items():
        source = source_of(argument)
        try:
            if source is None:
                tensor = tensor_of(name, argument)
            else:
                tensor = _output(name, argument["output"], outputs_of[source])
        except InvalidRequest as error:
            raise StepError(str(error), "bad-input", 400) from error
        found.append(_named(name, tensor, argument))
    return found


def _output(name: str, output: str | None, outputs: Mapping[str, StoredTensor]) -> StoredTensor:
    if output is None and len(outputs) == 1:
        return next(iter(outputs.values()))
    if output is not None and output in outputs:
        return outputs[output]
    known = ", ".join(sorted(outputs))
    if output is None:
        raise StepError(
            f"input {name!r} takes a step with several outputs: name one of {known}, "
            f'such as step["{min(outputs)}"]',
            "unknown-output",
            400,
        )
    raise StepError(
        f"input {name!r} takes output {output!r}; the model has: {known}", "unknown-output", 400
    )


def _named(name: str, tensor: StoredTensor, argument: Mapping[str, Any]) -> StoredTensor:
    if not name:
        if tensor.datatype != BYTES:
            raise StepError(
                "a positional argument is a text or an image; name the input of numbers: "
                "model(features=value)",
                "bad-input",
                400,
            )
        name = "image" if "base64" in argument else "text"
    return replace(tensor, name=name)
