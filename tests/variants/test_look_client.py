"""Looks at data through a real looking process, killed, stopped and misled."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from registry.domain.application import ApplicationSpec, InputTensor, SneakPeekSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from research.looks.training import train, write_sneakpeek
from tests.gateway.asynchronous import running
from variants import look_client as client_module
from variants.look_client import Look, LookOutcome, SneakPeekClient

NAME = ModelName("default", "parity")
ASKED = ApplicationSpec(NAME, ("even", "odd"), sneak_peek=SneakPeekSpec("file:///trained"))
BODY = orjson.dumps({"instances": [[4.0, 0.0], [0.0, 4.0]]})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is late only where a test says so, however slow its machine is."""
    monkeypatch.setattr(client_module, "TIMEOUT_S", 60.0)


def train_parity(folder: Path) -> None:
    """Two classes, one at (4, 0), the other at (0, 4)."""
    rng = np.random.default_rng(1)
    labels = np.arange(80) % 2
    centres = np.where(labels[:, None] == 0, [4.0, 0.0], [0.0, 4.0])
    rows = (rng.normal(0, 0.5, (80, 2)) + centres).astype(np.float32)
    trained = train(rows[:60], labels[:60], (rows[60:], labels[60:]), classes=2, k=5)
    write_sneakpeek(
        folder, trained, application=str(NAME), classes=("even", "odd"), inputs=("features",)
    )


def _state(uri: str, *, classes: tuple[str, ...] = ("even", "odd")) -> Any:
    state = ClusterState()
    inputs = (InputTensor("features", "FP32", (-1, 2)),)
    state.applications[NAME] = ApplicationSpec(NAME, classes, inputs, sneak_peek=SneakPeekSpec(uri))
    state.models_version += 1
    return state


def _run(
    state: ClusterState, act: Callable[[SneakPeekClient], Awaitable[None]], *, granted: bool = True
) -> list[str]:
    """Run with a looking process; returns the outcomes that were counted."""
    counted: list[str] = []

    async def run() -> None:
        client = SneakPeekClient(state, counted.append, lambda namespace, uri: granted)
        client.sync()
        async with running(client.run):
            await act(client)

    asyncio.run(run())
    return counted


async def _look(client: SneakPeekClient) -> Look:
    return await client.look(ASKED, [BODY], json_length=None, deadline_s=1000.0)


async def _loaded(client: SneakPeekClient) -> str:
    """Wait until the files were read or refused; returns the problem."""
    while "not read" in client.problem(str(NAME)):  # noqa: ASYNC110 - another process's state
        await asyncio.sleep(0.02)
    return client.problem(str(NAME))


async def _until(client: SneakPeekClient, outcome: LookOutcome) -> Look:
    while (result := await _look(client)).outcome is not outcome:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.02)
    return result


def test_a_look_counts_the_labels_of_each_rows_nearest_examples(tmp_path: Path) -> None:
    train_parity(tmp_path)

    async def act(client: SneakPeekClient) -> None:
        assert await _loaded(client) == ""
        result = await _until(client, LookOutcome.SEEN)
        assert result.rows == ((5.0, 0.0), (0.0, 5.0))
        assert result.accuracy == 1.0

    assert "seen" in _run(_state(f"file://{tmp_path}"), act)


def test_a_killed_process_costs_evidence_only_and_is_started_again(tmp_path: Path) -> None:
    train_parity(tmp_path)

    async def act(client: SneakPeekClient) -> None:
        await _until(client, LookOutcome.SEEN)
        first = client.process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await _until(client, LookOutcome.UNAVAILABLE)
        await _until(client, LookOutcome.SEEN)
        assert client.process.pid != first

    _run(_state(f"file://{tmp_path}"), act)


def test_a_process_that_stands_still_makes_looks_late_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_parity(tmp_path)
    monkeypatch.setattr(client_module, "SILENT_S", 0.1)

    async def act(client: SneakPeekClient) -> None:
        await _until(client, LookOutcome.SEEN)
        first = client.process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        with monkeypatch.context() as impatient:
            impatient.setattr(client_module, "TIMEOUT_S", 0.02)
            assert (await _until(client, LookOutcome.LATE)).rows == ()
            await _until(client, LookOutcome.UNAVAILABLE)
        await _until(client, LookOutcome.SEEN)
        assert client.process.pid != first

    _run(_state(f"file://{tmp_path}"), act)


def test_files_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    train_parity(tmp_path)
    uri = f"file://{tmp_path}"
    problems: list[str] = []

    async def act(client: SneakPeekClient) -> None:
        problems.append(await _loaded(client))
        assert (await _look(client)).outcome is LookOutcome.UNAVAILABLE

    _run(_state(f"{uri}/none"), act)
    _run(_state(uri, classes=("a", "b")), act)
    _run(_state(uri), act, granted=False)
    arrays = tmp_path / "sneakpeek.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-100])
    _run(_state(uri), act)
    expected = (
        "cannot be read",
        "trained for the classes even, odd; the application has a, b",
        "namespace default may not have",
        "not what `pilotlight sneakpeek train` writes",
    )
    for problem, text in zip(problems, expected, strict=True):
        assert text in problem
