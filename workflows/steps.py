"""Executes one step: where it runs, its request, its retries, its outputs; frees what pods keep.

Steps go through the gateway as ordinary V2 requests, to the pod that the plan names.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import orjson

from common.http_client import HttpClient, Response, split_url
from common.http_connection import HttpError, NotConnected, TooLarge
from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import LENGTH_HEADER
from common.inference_protocol.tensors import BYTES, TensorReference
from common.pod_responses import parse_server_timing
from common.pod_secret import PodSecret
from common.tls import PartTls
from workflows.errors import InputsLost, StepLost, WorkflowError
from workflows.plan.planner import Planner
from workflows.run import Run, RunStatus, RunStep
from workflows.runner import STREAM, source_of
from workflows.settings import SchedulerSettings
from workflows.values import (
    CompletionStream,
    StoredTensor,
    StreamedText,
    body_outputs,
    completion_body,
    infer_body,
    is_v2_body,
    read_outputs,
    single_item,
    tensor_of,
)

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 8
"""Of a step whose pods were lost with it. Until the run's deadline it waits for a gateway."""
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 2.0
_MAX_TRIAL_PAUSE_S: Final = 10.0
"""Gateways let a request that lost two pods by chance be tried again after 5 s. A longer pause
says that it is held for the cause."""

POD_HEADER: Final = "x-pilotlight-place-at"
"""Names the pod that a step is placed at; gateways honour it from schedulers only."""
ANY_POD: Final = "*"
"""In place of a pod's name: the gateway chooses the pod, in whose step queue the step waits."""
RUN_HEADER: Final = "x-pilotlight-run"
"""Asks a pod to keep large outputs for the run; gateways forward it from schedulers only."""
FOLLOWING_HEADER: Final = "x-pilotlight-following-ms"
"""What the step's run is expected to take after it: of two steps with one deadline, the pod first
runs the one that more is to follow (Zhang et al. 2025 run batches by arrival)."""

MAX_FETCH_BYTES: Final = 4 * 1024**2
"""Outputs that a run's code may fetch at once: it is given them in one message, through a pipe."""
FETCH_TIMEOUT_S: Final = 10.0
"""Also to free outputs. What a pod keeps that does not answer by then is made again."""


class Steps:
    """A client of one gateway and of all pods. Belongs to the event loop."""

    def __init__(
        self,
        settings: SchedulerSettings,
        planner: Planner,
        secret: PodSecret,
        tls: PartTls | None = None,
    ) -> None:
        self._gateway, _ = split_url(settings.gateway_url)
        self._planner = planner
        self._secret = secret
        self._client = HttpClient(max_body_bytes=settings.max_output_bytes, tls=tls)
        self._pods = HttpClient(max_body_bytes=MAX_FETCH_BYTES, tls=tls)

    def close(self) -> None:
        self._client.close()
        self._pods.close()

    async def execute(self, run: Run, step: RunStep, on_text: Callable[[], None]) -> None:
        """Send a step, whose inputs are there, until a pod answers; sets its outputs.

        `on_text` is called when more has come of the text of a streamed one. Raises WorkflowError,
        InputsLost.
        """
        inputs = _resolved_inputs(run, step)
        if step.protocol == STREAM:
            step.text = StreamedText()
        losses = 0
        while True:
            try:
                await self.attempt(run, step, inputs, on_text)
            except StepLost as error:
                losses += error.was_sent
                if losses >= MAX_ATTEMPTS:
                    raise WorkflowError(str(error), "step-lost", 503) from error
                pause_s = min(_FIRST_PAUSE_S * 2 ** min(step.attempts - 1, 8), _MAX_PAUSE_S)
                await asyncio.sleep(max(pause_s, error.pause_s))
            else:
                return

    async def attempt(
        self,
        run: Run,
        step: RunStep,
        inputs: Sequence[StoredTensor],
        on_text: Callable[[], None] = lambda: None,
    ) -> None:
        """Place a step and send it once. Raises WorkflowError, StepLost, InputsLost."""
        step.sent_s = self._planner.now_s()
        pod = step.pod = self._planner.place(run, step)
        following_s = self._planner.following_s(run, step)
        step.attempts += 1
        step.due_s = run.deadline_s - following_s
        path, headers, body = _request(run, step, inputs)
        headers |= self._secret.headers
        left_s = run.deadline_s - step.sent_s
        headers["x-request-id"] = f"{run.identity}.{step.number}"
        headers["x-pilotlight-deadline-ms"] = f"{max(1.0, left_s * 1000):.0f}"
        headers[POD_HEADER] = pod or ANY_POD
        if following_s > 0.0:
            headers[FOLLOWING_HEADER] = f"{following_s * 1000:.0f}"
        stream = _stream(run, step, on_text)
        try:
            async with self._client.stream("POST", self._gateway, path, headers, body) as begun:
                if stream is not None and begun.status == 200:
                    async for chunk in begun.chunks():
                        stream.feed(chunk)
                response = Response(begun.status, begun.headers, await begun.read())
        except TooLarge as error:
            raise WorkflowError(
                f"the outputs of model {step.model.name} are too large: {error}",
                "output-too-large",
                413,
            ) from error
        except HttpError as error:
            raise StepLost(
                f"the gateway gave no response: {error}",
                was_sent=not isinstance(error, NotConnected),
            ) from error
        outputs = _outputs(step, inputs, response, stream)
        if step.text is not None and step.text.differs:
            raise WorkflowError(
                "the pod was lost while the text was generated, and another generated another text",
                "step-lost",
                503,
            )
        step.outputs = outputs
        step.pod = response.headers.get("x-pilotlight-pod") or pod
        step.start = response.headers.get("x-pilotlight-start", "warm")
        step.stages_ms = parse_server_timing(response.headers.get("server-timing", ""))
        step.batch = response.headers.get("x-pilotlight-batch", "")
        run.keepers |= {each.kept.address for each in outputs.values() if each.kept is not None}

    # Outputs that pods keep

    async def fetch(self, run: Run, step: RunStep) -> dict[str, StoredTensor]:
        """All outputs of a step with their data; pods keep theirs. Raises InputsLost."""
        outputs = dict(step.outputs or {})
        for name, tensor in outputs.items():
            if tensor.kept is not None and tensor.is_elsewhere:
                raw = await self._fetch_tensor(run, name, tensor.kept)
                outputs[name] = replace(tensor, raw=raw)
        return outputs

    async def _fetch_tensor(self, run: Run, name: str, kept: TensorReference) -> bytes:
        try:
            path = f"/{quote(kept.identity, safe='')}"
            response = await self._ask("GET", run, kept.address, path)
        except HttpError as error:
            raise InputsLost(f"the pod that keeps {name!r} is gone: {error}") from error
        if response.status != 200 or len(response.body) != kept.size_bytes:
            raise InputsLost(f"the pod does not keep {name!r} any more")
        return response.body

    async def drop(self, run: Run, addresses: Collection[str]) -> None:
        """Free what pods keep for a run that has ended; what fails ends with its deadline."""
        await asyncio.gather(*(self._drop_at(run, address) for address in addresses))

    async def _drop_at(self, run: Run, address: str) -> None:
        try:
            await self._ask("DELETE", run, address)
        except HttpError as error:
            logger.info("kept outputs not freed", extra={"pod": address, "error": str(error)})

    async def _ask(self, method: str, run: Run, address: str, path: str = "") -> Response:
        names = (run.workflow.namespace, run.identity)
        path = "/v2/tensors/" + "/".join(quote(name, safe="") for name in names) + path
        return await self._pods.request(
            method, address, path, self._secret.headers, timeout_s=FETCH_TIMEOUT_S
        )


def _request(
    run: Run, step: RunStep, inputs: Sequence[StoredTensor]
) -> tuple[str, dict[str, str], bytes]:
    """Path, headers and body of a step's request. Raises WorkflowError."""
    name = quote(step.model.name)
    path = f"/serving/{quote(step.model.namespace)}/{name}"
    if not step.protocol:
        encoded = infer_body(inputs)
        headers = {**dict(encoded.headers), RUN_HEADER: run.identity}
        return f"{path}/v2/models/{name}/infer", headers, encoded.content
    headers = {"content-type": "application/json"}
    if step.protocol == STREAM:
        body = completion_body(step.model.name, inputs, f"{run.identity}.{step.number}")
        return f"{path}/openai/v1/completions", headers, body
    try:
        body = single_item(inputs[0])
    except InvalidRequest as error:
        raise WorkflowError(str(error), "bad-input", 400) from error
    is_v1 = step.protocol == "v1" or (step.protocol != "v2" and not is_v2_body(body))
    path += f"/v1/models/{name}:predict" if is_v1 else f"/v2/models/{name}/infer"
    return path, headers, body


def _stream(run: Run, step: RunStep, on_text: Callable[[], None]) -> CompletionStream | None:
    text = step.text
    if text is None:
        return None
    text.begin()

    def on_piece(piece: str) -> None:
        if run.status is RunStatus.RUNNING:
            text.append(piece)
            on_text()

    return CompletionStream(on_piece)


def _resolved_inputs(run: Run, step: RunStep) -> list[StoredTensor]:
    """The tensors of a call, references replaced by outputs. Raises WorkflowError."""
    found = []
    for name, argument in step.inputs.items():
        source = source_of(argument)
        try:
            if source is None:
                tensor = tensor_of(name, argument)
            else:
                tensor = _output(name, argument["output"], run.steps[source].outputs or {})
        except InvalidRequest as error:
            raise WorkflowError(str(error), "bad-input", 400) from error
        if not name and tensor.datatype != BYTES:
            raise WorkflowError(
                "a positional argument is a text or an image; name the input of numbers: "
                "model(features=value)",
                "bad-input",
                400,
            )
        found.append(replace(tensor, name=name or ("image" if "base64" in argument else "text")))
    return found


def _output(name: str, output: str | None, outputs: Mapping[str, StoredTensor]) -> StoredTensor:
    if output is None and len(outputs) == 1:
        return next(iter(outputs.values()))
    if output is not None and output in outputs:
        return outputs[output]
    known = ", ".join(sorted(outputs))
    if not outputs:
        text = "takes a step that has no outputs"
    elif output is None:
        text = f"takes a step with several outputs: name one of {known}, such as "
        text += f'step["{min(outputs)}"]'
    else:
        text = f"takes output {output!r}; the model has: {known}"
    raise WorkflowError(f"input {name!r} {text}", "unknown-output", 400)


def _outputs(
    step: RunStep,
    inputs: Sequence[StoredTensor],
    response: Response,
    stream: CompletionStream | None,
) -> dict[str, StoredTensor]:
    """Raises WorkflowError, StepLost; InputsLost where the pod could not get an input."""
    if response.status == 424 and any(each.kept is not None for each in inputs):
        raise InputsLost(response.body[:300].decode("utf-8", "replace"))
    if response.status != 200:
        failure = _failure(step, response)
        if step.protocol in ("", STREAM) or isinstance(failure, StepLost):
            raise failure
    if stream is not None:
        return stream.outputs()
    if step.protocol:
        return body_outputs(response.status, response.body)
    try:
        return read_outputs(response.body, response.headers.get(LENGTH_HEADER))
    except InvalidRequest as error:
        raise WorkflowError(str(error), "bad-output", 502) from error


def _failure(step: RunStep, response: Response) -> WorkflowError | StepLost:
    status, headers = response.status, response.headers
    try:
        error: Any = orjson.loads(response.body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        text = response.body[:200].decode("utf-8", "replace")
    reason = headers.get("x-pilotlight-reason", "step-failed")
    if status in (502, 503) and reason in {"pod-lost", "not-taken", "draining", "not-ready"}:
        return StepLost(f"{reason}: {text}", was_sent=reason in {"pod-lost", "not-taken"})
    pause = headers.get("retry-after", "")
    pause_s = float(pause) if pause.isdecimal() else 0.0
    if reason == "lost-pods" and 0 < pause_s <= _MAX_TRIAL_PAUSE_S:
        return StepLost(f"{reason}: {text}", pause_s=pause_s)
    refusal = headers.get("x-pilotlight-not-executed")
    if refusal == "step-queue" or (refusal == "no-memory" and pause):
        return StepLost(f"{refusal}: {text}", was_sent=False)
    return WorkflowError(f"model {step.model.name}: {text}", reason, status)
