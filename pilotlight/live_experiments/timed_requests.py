"""Timed requests to the gateway, as a plain HTTP client sends them, and their routing headers."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

from load.experiments.liu.runs import TimedAnswer
from pilotlight.errors import PilotlightError, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    import httpx

T = TypeVar("T")


def parse_server_timing(text: str) -> dict[str, float]:
    """Seconds by stage of a `server-timing` header."""
    stages = {}
    for entry in text.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur":
                stages[name] = float(value) / 1000
    return stages


async def gather_requests(*requests: Coroutine[Any, Any, T]) -> list[T]:
    """The results of concurrent requests; the first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except* PilotlightError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def timed_request(
    client: httpx.AsyncClient, path: str, body: Any, headers: Mapping[str, str] | None = None
) -> TimedAnswer:
    """POST a JSON body; raises RequestFailed for any status but success."""
    started_s = time.perf_counter()
    response = await client.post(path, json=body, headers=dict(headers or {}))
    latency_s = time.perf_counter() - started_s
    if not response.is_success:
        raise RequestFailed(f"{path}: HTTP {response.status_code}: {response.text[:300]}")
    found = response.headers
    pod = found.get("x-pilotlight-pod", "")
    return TimedAnswer(
        latency_s=latency_s,
        start=found.get("x-pilotlight-start", ""),
        pod=pod,
        predict_pod=found.get("x-pilotlight-predict-pod", pod),
        reason=found.get("x-pilotlight-reason", ""),
        request_id=found.get("x-request-id", ""),
        stages_s=parse_server_timing(found.get("server-timing", "")),
        body=response.json(),
    )
