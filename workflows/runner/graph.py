"""Executes an InferenceGraph as KServe's router does (kserve/kserve, cmd/router/main.go, 0.20).

A step sends a body to a model and has a status and a body. What the router answers with an error of
its own is a `RoutingError`, or a `StepFailed` where a model has no response. Where the router would
wait for whichever of parallel steps fails first, the first in order counts here, so that runs can
be resumed; its Splitter fails one request in 101, this one none.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import orjson

from registry.domain.graph import ROOT, GraphNode, GraphStep, JsonPath, RouterType, parse_path
from workflows.runner.calls import Output, Step, written_argument
from workflows.runner.execution import StepFailed, Workflow, running

BODY: Final = "body"
STATUS: Final = "status"
_parsed_path: Final = cache(parse_path)


class RoutingError(Exception):
    """No step's response is the graph's."""

    def __init__(self, cause: str, status: int = 500) -> None:
        super().__init__(cause)
        self.status = status


@dataclass(slots=True)
class Reply:
    """A status and a body, which a model may still work on."""

    step: Step | None
    status: int = 200
    text: str = ""

    @property
    def content(self) -> str | Output:
        """The body as another step's input: not fetched where it need not be."""
        return self.text if self.step is None else self.step[BODY]

    async def fetch(self) -> tuple[int, str]:
        """Status and body. Raises StepFailed where there is no response."""
        if self.step is not None:
            outputs = await self.step
            self.status, self.text, self.step = outputs[STATUS], outputs[BODY], None
        return self.status, self.text

    async def has_failed(self) -> bool:
        return _is_failure((await self.fetch())[0])


def _is_failure(status: int) -> bool:
    return not 200 <= status <= 299


def graph_workflow(nodes: Mapping[str, GraphNode], deadline_s: float | None) -> Workflow:
    """A workflow whose argument `body` and whose result are bodies: `{"status", "body"}`."""

    async def graph(body: str) -> dict[str, Any]:
        try:
            status, text = await (await _route(nodes, ROOT, body)).fetch()
        except (RoutingError, StepFailed) as error:
            document = {"error": "Failed to process request", "cause": str(error)}
            status = error.status if isinstance(error, RoutingError) else 500
            text = orjson.dumps(document).decode()
        return {STATUS: status, BODY: text}

    return Workflow(graph, deadline_s)


async def _route(nodes: Mapping[str, GraphNode], name: str, content: str | Output) -> Reply:
    node = nodes[name]
    match node.router:
        case RouterType.SEQUENCE:
            return await _sequence(nodes, node.steps, content)
        case RouterType.ENSEMBLE:
            return await _ensemble(nodes, node.steps, content)
        case RouterType.SPLITTER:
            chosen = _by_weight(node.steps)
        case RouterType.SWITCH:
            chosen = await _by_condition(node.steps, content)
    return await _execute(nodes, chosen, content)


async def _execute(nodes: Mapping[str, GraphNode], step: GraphStep, content: str | Output) -> Reply:
    """The step's reply. Raises StepFailed, and RoutingError, always with status 500."""
    if step.node:
        try:
            return await _route(nodes, step.node, content)
        except RoutingError as error:
            raise RoutingError(str(error)) from error
    inputs = {BODY: written_argument(content)}
    run = running()
    number = run.begin_step(step.model, inputs, step.protocol or BODY)
    return Reply(Step(run, step.model, number))


async def _sequence(
    nodes: Mapping[str, GraphNode], steps: Sequence[GraphStep], content: str | Output
) -> Reply:
    last = Reply(None)
    for number, step in enumerate(steps):
        if step.condition:
            document = _document((await last.fetch())[1])
            if not _parsed_path(step.condition).exists(document):
                return Reply(None, 200, last.text)
        if number > 0 and (not step.takes_response or step.maps_predictions):
            await last.fetch()  # one after the other
        given = last.content if step.takes_response else content
        if step.maps_predictions:
            given = _as_instances(given if isinstance(given, str) else str(await given))
        last = await _execute(nodes, step, given)
        if step.is_hard and await last.has_failed():
            return last
    return last


def _as_instances(text: str) -> str:
    """A body whose `predictions` are a list with items, with these as its only `instances`."""
    try:
        document = orjson.loads(text)
    except ValueError:
        return text
    if not isinstance(document, dict):
        return text
    predictions, instances = document.get("predictions"), document.get("instances")
    if not predictions or not isinstance(predictions, list):
        return text
    if not isinstance(instances, list | None):
        return text
    return _text({"instances": predictions})


def _document(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise RoutingError("invalid response") from error


async def _ensemble(
    nodes: Mapping[str, GraphNode], steps: Sequence[GraphStep], content: str | Output
) -> Reply:
    async def execute(step: GraphStep) -> tuple[int, dict[str, Any]]:
        status, text = await (await _execute(nodes, step, content)).fetch()
        document = _document(text)
        if not isinstance(document, dict):
            raise RoutingError(f"the response of step {step.name!r} is no object")
        return status, document

    tasks = [asyncio.ensure_future(execute(step)) for step in steps]
    try:
        merged = {}
        for number, (step, task) in enumerate(zip(steps, tasks, strict=True)):
            status, document = await task
            if step.is_hard and _is_failure(status):
                return Reply(None, status, _text(document))
            merged[step.name or str(number)] = document
        return Reply(None, 200, _text(merged))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _text(document: Any) -> str:
    """As Go's encoder writes a map: keys in order."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()


def _by_weight(steps: Sequence[GraphStep]) -> GraphStep:
    point, end = running().random.randrange(100), 0
    for step in steps:
        end += step.weight
        if point < end:
            return step
    raise RoutingError("the weights of a Splitter do not sum to 100")


async def _by_condition(steps: Sequence[GraphStep], content: str | Output) -> GraphStep:
    text = str(await content) if isinstance(content, Output) else content
    try:
        document = orjson.loads(text)
    except ValueError:
        steps = ()
    for step in steps:
        path: JsonPath = _parsed_path(step.condition)
        if path.exists(document):
            return step
    raise RoutingError("None of the routes matched with the switch condition", 404)
