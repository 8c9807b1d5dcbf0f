"""Processes of pickled estimators: hostile files and models harm no other namespace."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import numeric_tensor
from runtime.errors import InferenceFailed, InferenceHung, ModelInvalid, ServerUnavailable
from runtime.sandbox.estimators import Estimators, LoadedEstimator
from tests.runtime.sandbox.hostile_pickles import Calls, hostile_model, logistic, saved

pytestmark = pytest.mark.slow

ROWS = np.array([[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]])
MEMORY_BYTES = 512 * 1024**2
TEN_GB = 10 * 1000**3
HANG_S = 2.0


class Namespaces:
    """Loads and asks models as a pod does."""

    def __init__(self) -> None:
        self.estimators = Estimators(memory_bytes=MEMORY_BYTES, threads=1)
        self.lost: list[str] = []
        self.estimators.on_lost = self.lost.append

    async def load(self, key: str, content: Any, *, likely: bool = False) -> LoadedEstimator:
        data = content if isinstance(content, bytes) else saved(content)
        load = partial(
            self.estimators.load_in_thread, key, memoryview(data), wants_probabilities=likely
        )
        return await asyncio.to_thread(load)

    async def ask(
        self,
        loaded: LoadedEstimator,
        rows: Any = ROWS,
        *,
        limit_s: float = 60.0,
        deadline_s: float | None = None,
    ) -> list[Any]:
        tensors = await self.estimators.infer(
            loaded, [numeric_tensor("input-0", rows)], limit_s=limit_s, deadline_s=deadline_s
        )
        found: list[Any] = tensors[0].data.tolist()
        return found


def _run(work: Callable[[Namespaces], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Namespaces]:
        namespaces = Namespaces()
        try:
            yield namespaces
        finally:
            await namespaces.estimators.close()

    async def run() -> None:
        async with opened() as namespaces:
            await work(namespaces)

    asyncio.run(run())


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of another process, which tells nothing
            await asyncio.sleep(0.01)


def test_models_of_a_namespace_answer_from_one_process() -> None:
    model = logistic()

    async def work(namespaces: Namespaces) -> None:
        classes = await namespaces.load("one/iris@1", model)
        likely = await namespaces.load("one/likely@1", model, likely=True)
        assert await namespaces.ask(classes) == model.predict(ROWS).tolist()
        np.testing.assert_allclose(await namespaces.ask(likely), model.predict_proba(ROWS))
        with pytest.raises(InvalidRequest, match="must have 4 features"):
            await namespaces.ask(classes, ROWS[:, :2])
        with pytest.raises(InvalidRequest, match="NaN"):
            await namespaces.ask(classes, np.full((1, 4), np.nan))
        assert classes.memory_bytes >= len(saved(model))
        assert not namespaces.lost

    _run(work)


def test_a_file_that_does_harm_when_it_is_read_is_refused_and_other_models_go_on(
    tmp_path: Path,
) -> None:
    target = tmp_path / "made"
    with socket.create_server(("127.0.0.1", 0)) as server:
        denied = {
            "connect": Calls(socket.create_connection, server.getsockname()),
            "socket": Calls(socket.socket),
            "fork": Calls(os.fork),
            "folder": Calls(os.mkdir, str(target)),
            "write": Calls(Path.write_text, target, "x"),
            "read": Calls(Path.read_text, Path("/etc/passwd")),
            "environment": Calls(Path.read_text, Path("/proc/self/environ")),
            "program": Calls(os.execv, "/bin/true", ["true"]),
            "signal": Calls(os.kill, os.getpid(), 0),
        }

        async def work(namespaces: Namespaces) -> None:
            good = await namespaces.load("one/iris@1", logistic())
            for name, content in denied.items():
                with pytest.raises(ModelInvalid, match="PermissionError"):
                    await namespaces.load(f"one/{name}@1", content)
            unreadable: dict[str, Any] = {
                "more memory": Calls(bytearray, TEN_GB),
                "no method predict": {"no": "model"},
                "Error": b"no pickle",
                "cannot be read": saved(logistic())[:200],
            }
            for problem, each in unreadable.items():
                with pytest.raises(ModelInvalid, match=problem):
                    await namespaces.load("one/other@1", each)
            assert await namespaces.ask(good) == [1, 0]

        _run(work)
    assert not target.exists()


def test_a_file_that_ends_the_process_costs_its_namespace_the_process_only() -> None:
    async def work(namespaces: Namespaces) -> None:
        near = await namespaces.load("one/near@1", logistic())
        far = await namespaces.load("two/far@1", logistic())
        with pytest.raises(ModelInvalid, match="status 3"):
            await namespaces.load("one/ends@1", Calls(os._exit, 3))
        assert "one/near@1" in namespaces.lost
        with pytest.raises(ServerUnavailable):
            await namespaces.ask(near)
        assert await namespaces.ask(far) == [1, 0]
        assert await namespaces.ask(await namespaces.load("one/near@1", logistic())) == [1, 0]

    _run(work)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("return bytearray(10 * 1000**3)", "more memory"),
        ("socket.create_connection(('127.0.0.1', 1))", "PermissionError"),
        ("os.fork()", "PermissionError"),
        ("open('/tmp/made-by-a-pickle', 'w')", "PermissionError"),
        ("sys.exit(1)", "SystemExit"),
        ("raise RuntimeError('of its own')", "of its own"),
    ],
)
def test_harm_that_a_model_tries_in_a_batch_is_a_clear_error(code: str, problem: str) -> None:
    async def work(namespaces: Namespaces) -> None:
        hostile = await namespaces.load("one/hostile@1", hostile_model(code))
        near = await namespaces.load("one/near@1", logistic())
        with pytest.raises(InferenceFailed, match=problem):
            await namespaces.ask(hostile)
        assert await namespaces.ask(near) == [1, 0]

    _run(work)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("os._exit(3)", InferenceFailed),
        ("time.sleep(1e6)", InferenceHung),
        (
            "os.write(3, b'x' * 64)\n        os.write(0, b'x' * 64)\n        os.abort()",
            InferenceFailed,
        ),
    ],
)
def test_one_that_ends_or_hangs_in_a_batch_leaves_other_namespaces_alone(
    code: str, error: type[Exception]
) -> None:
    async def work(namespaces: Namespaces) -> None:
        hostile = await namespaces.load("one/hostile@1", hostile_model(code))
        far = await namespaces.load("two/far@1", logistic())
        failing = asyncio.create_task(namespaces.ask(hostile, limit_s=HANG_S))
        assert await namespaces.ask(far) == [1, 0]
        with pytest.raises(error):
            await failing
        assert namespaces.lost == ["one/hostile@1"]
        assert await namespaces.ask(far) == [1, 0]

    _run(work)


def test_a_client_that_stops_waiting_does_not_end_the_process() -> None:
    async def work(namespaces: Namespaces) -> None:
        slow = await namespaces.load("one/slow@1", hostile_model("time.sleep(0.5); return rows"))
        near = await namespaces.load("one/near@1", logistic())
        with pytest.raises(InferenceHung, match="deadline"):
            await namespaces.ask(slow, deadline_s=time.monotonic() + 0.05)
        assert await namespaces.ask(near) == [1, 0]
        assert not namespaces.lost

    _run(work)


def test_a_process_stands_still_between_calls_and_ends_with_its_last_model() -> None:
    spins = "threading.Thread(target=exec, args=('while True: pass',), daemon=True).start()"

    async def work(namespaces: Namespaces) -> None:
        loaded = await namespaces.load(
            "one/spins@1", hostile_model(f"{spins}; return rows[:, 0] * 0 + os.getpid()")
        )
        process = int((await namespaces.ask(loaded))[0])
        stat = Path(f"/proc/{process}/stat")
        await _until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        namespaces.estimators.unload_soon(loaded)
        await _until(lambda: not stat.exists())

    _run(work)


def test_closing_waits_for_a_process_that_is_ending() -> None:
    found: list[Path] = []

    async def work(namespaces: Namespaces) -> None:
        reply = hostile_model("return rows[:, 0] * 0 + os.getpid()")
        loaded = await namespaces.load("one/last@1", reply)
        found.append(Path(f"/proc/{int((await namespaces.ask(loaded))[0])}"))
        namespaces.estimators.unload_soon(loaded)
        await asyncio.sleep(0)  # the unloading begins in the next turn of the loop
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    _run(work)
    assert not found[0].exists()


def test_a_model_of_another_scikit_learn_is_refused() -> None:
    version = import_module("sklearn").__version__.encode()
    old = saved(logistic()).replace(version, b"0.0.1")

    async def work(namespaces: Namespaces) -> None:
        with pytest.raises(ModelInvalid, match=r"saved with scikit-learn 0\.0\.1"):
            await namespaces.load("one/old@1", old)

    _run(work)
