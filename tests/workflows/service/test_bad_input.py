"""Wrong files, arguments and code: a clear answer each, and other runs go on."""

from typing import Any

import pytest

from tests.workflows.service.harness import WorkflowHarness

pytestmark = pytest.mark.slow


def _nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("source", "text", "line"),
    [
        pytest.param("def f(:\n", "SyntaxError", 2, id="syntax"),
        pytest.param("x = 1\n", "one function with @workflow", None, id="no workflow"),
        pytest.param("@workflow\ndef f(): pass\n", "async def", None, id="not asynchronous"),
        pytest.param("\n1 / 0\n", "ZeroDivisionError", 3, id="exception"),
        pytest.param(
            "@workflow(deadline='fast')\nasync def f(): pass\n", "was 'fast'", None, id="deadline"
        ),
        pytest.param("@workflow\nasync def f(*texts): pass\n", "'texts'", None, id="variadic"),
        pytest.param("import sys\nsys.exit(3)\n", "SystemExit", 3, id="exit"),
    ],
)
def test_a_wrong_file_is_not_deployed(
    harness: WorkflowHarness, source: str, text: str, line: int | None
) -> None:
    response = harness.put(source, name="wrong")
    assert response.status_code == 400
    assert text in response.json()["error"]
    assert response.json().get("line") == line
    assert harness.run("wrong").status_code == 404


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param({}, "'text' (text) is missing", id="missing"),
        pytest.param({"text": 3}, "'text' must be a text, was 3", id="type"),
        pytest.param({"text": "a", "count": True}, "must be a whole number", id="boolean"),
        pytest.param({"text": "a", "n": 1}, "unknown argument 'n'", id="unknown"),
        pytest.param([1], "JSON object", id="list"),
        pytest.param({"text": _nested(254)}, "nested too deeply", id="nested"),
    ],
)
def test_wrong_arguments_are_refused(harness: WorkflowHarness, arguments: Any, text: str) -> None:
    name = harness.deploy(
        """
        @workflow
        async def f(text: str, count: int = 1):
            return text
        """
    )
    response = harness.run(name, arguments)
    assert (response.status_code, response.json()["reason"]) == (400, "bad-request")
    assert text in response.json()["error"]


def _failure(harness: WorkflowHarness, body: str) -> tuple[int, dict[str, Any]]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    name = harness.deploy(f"@workflow(deadline='600s')\nasync def f():\n{lines}")
    response = harness.run(name)
    return response.status_code, response.json()


@pytest.mark.parametrize(
    ("body", "status", "reason", "text"),
    [
        pytest.param("await model('nope')('a')", 404, "model-not-found", "nope", id="model"),
        pytest.param(
            "return (await model('writer')('a'))['label']",
            422,
            "unknown-output",
            "has: text",
            id="fetched output",
        ),
        pytest.param(
            "return await model('judge')(x=model('writer')('a')['label'])",
            400,
            "unknown-output",
            "has: text",
            id="passed output",
        ),
        pytest.param("return [][1]", 422, "workflow-failed", "IndexError", id="exception"),
        pytest.param("while True: pass", 422, "stuck", "busy for 2 s", id="loop without await"),
        pytest.param(
            "while True: await model('writer')('a')", 422, "step-limit", "256", id="step limit"
        ),
        pytest.param(
            "import asyncio\nawait asyncio.Event().wait()",
            422,
            "deadlock",
            "none of its steps",
            id="waits for nothing",
        ),
        pytest.param(
            "import asyncio\nasync def wait_for(other):\n    return await other[0]\n"
            "a, b = [], []\na.append(asyncio.ensure_future(wait_for(b)))\n"
            "b.append(asyncio.ensure_future(wait_for(a)))\nawait a[0]",
            422,
            "deadlock",
            "none of its steps",
            id="two tasks wait for each other",
        ),
        pytest.param(
            "await model('writer')('a' * (65 << 20))",
            413,
            "input-too-large",
            "33554432 are allowed",
            id="too large to send",
        ),
        pytest.param(
            "return 'a' * (65 << 20)",
            413,
            "result-too-large",
            "33554432 are allowed",
            id="too large a result",
        ),
        pytest.param("return {1, 2}", 422, "workflow-failed", "must be JSON", id="no JSON"),
        pytest.param("model('writer')({'a': 1})", 422, "workflow-failed", "dict", id="input"),
        pytest.param(
            "return await model('judge')(x=tensor([0.5] * 2_000_000, 'FP32', [2_000_000]))",
            413,
            "output-too-large",
            "8000000 bytes",
            id="too large to fetch",
        ),
        pytest.param(
            "import socket\nsocket.socket()",
            422,
            "workflow-failed",
            "PermissionError",
            id="network",
        ),
        pytest.param(
            "return open('/etc/passwd').read()",
            422,
            "workflow-failed",
            "PermissionError",
            id="files",
        ),
    ],
)
def test_wrong_code_fails_its_run(
    harness: WorkflowHarness, body: str, status: int, reason: str, text: str
) -> None:
    code, document = _failure(harness, body)
    assert (code, document["reason"]) == (status, reason), document
    assert text in document["error"]


def test_an_exception_names_its_line(harness: WorkflowHarness) -> None:
    _, document = _failure(harness, "x = 1\nraise KeyError('gone')")
    assert document["exception"] == "KeyError"
    assert document["line"] == 5


def test_a_run_that_does_not_wait_names_the_line_where_it_was(harness: WorkflowHarness) -> None:
    _, document = _failure(harness, "x = 1\nwhile True: pass")
    assert document["line"] == 5


def test_an_endless_loop_that_yields_ends_at_the_deadline(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def f(forever: bool):
            import asyncio
            while forever:
                await asyncio.sleep(0)
            return "done"
        """
    )
    response = harness.run(name, {"forever": True}, x_pilotlight_deadline_ms="300")
    assert (response.status_code, response.json()["reason"]) == (504, "deadline")
    assert harness.result(name, {"forever": False}) == "done"


def test_other_runs_go_on_beside_an_endless_loop(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow(deadline="20s")
        async def f(forever: bool):
            text = (await model("writer")("done"))["text"]
            while forever:
                pass
            return text
        """
    )
    stuck = harness.start(name, {"forever": True})
    assert harness.result(name, {"forever": False}) == "done"
    assert harness.wait_ended(stuck)["error"]["reason"] == "stuck"


def test_too_large_bodies_are_refused(harness: WorkflowHarness) -> None:
    name = harness.deploy("@workflow\nasync def f(text: str): return text\n")
    response = harness.run(name, {"text": "a" * (16 << 20)})
    assert response.status_code == 413
    assert "16777216 bytes" in response.json()["error"]
    assert harness.result(name, {"text": "a"}) == "a"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"x_pilotlight_deadline_ms": "soon"}, id="deadline"),
        pytest.param({"x_pilotlight_deadline_ms": "-1"}, id="past deadline"),
        pytest.param({"idempotency_key": "k" * 257}, id="idempotency key"),
    ],
)
def test_wrong_headers_are_refused(harness: WorkflowHarness, headers: dict[str, str]) -> None:
    name = harness.deploy("@workflow\nasync def f(): return 1\n")
    response = harness.run(name, **headers)
    assert response.status_code == 400
    assert next(iter(headers)).replace("_", "-") in response.json()["error"]


def test_a_file_that_ends_its_runner_twice_is_stopped(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow
        async def f():
            import os
            os._exit(1)
        """
    )
    assert harness.run(name).json()["reason"] == "workflow-stopped"
    response = harness.run(name)
    assert (response.status_code, response.json()["reason"]) == (409, "workflow-stopped")


@pytest.mark.parametrize("name", ["No", "a_b", "a" * 64, "-a"])
def test_a_wrong_name_is_refused(harness: WorkflowHarness, name: str) -> None:
    assert harness.put("x = 1", name=name).status_code == 400


def test_an_unknown_policy_is_refused(harness: WorkflowHarness) -> None:
    name = harness.deploy("@workflow\nasync def f(): return 1\n")
    response = harness.run(name, x_pilotlight_scheduling="best")
    assert (response.status_code, response.json()["reason"]) == (400, "bad-request")
    assert "must be one of speculative" in response.json()["error"]
