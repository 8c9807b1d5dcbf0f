"""Every estimator of scikit-learn answers as scikit-learn does, from skops files and pickles."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import skops.io

from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor, plain_values
from registry.domain.model import Task
from runtime.errors import ModelInvalid
from runtime.sandbox.estimators import Estimators, LoadedEstimator
from tests.reference.estimators import NAMES, trained
from tests.reference.outcomes import Outcomes
from tests.runtime.engines.libraries.loaded import load

pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("ignore"),  # of scikit-learn, as it does to its users
]
SKOPS, PICKLES = "scikit-learn, skops", "scikit-learn, pickles"
TASKS = {"predict": None, "predict_proba": Task.TABULAR_CLASSIFICATION}


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(scope="session")
def estimators(loop: asyncio.AbstractEventLoop) -> Iterator[Estimators]:
    async def start() -> Estimators:
        return Estimators(memory_bytes=1 << 30, threads=1)

    made = loop.run_until_complete(start())
    kept, _ = trained("DummyClassifier")  # its process ends with its last model
    loop.run_until_complete(_loaded(made, "kept", kept, "predict"))
    yield made
    loop.run_until_complete(made.close())


@pytest.mark.parametrize("name", NAMES)
def test_skops(name: str, outcomes: Outcomes, tmp_path: Path) -> None:
    with outcomes.judge(SKOPS, name) as outcome:
        model, rows = trained(name)
        try:
            skops.io.dump(model, tmp_path / "model.skops")
        except skops.io.exceptions.UnsupportedTypeException as error:
            outcome.refuse(f"skops cannot write it: {error}")
            return
        try:
            for method in _methods(model):
                served = load(tmp_path, TASKS[method])
                _compare(served.v2([_tensor(rows)]), getattr(model, method)(rows))
                if method == "predict":
                    expected = model.predict(rows)
                    np.testing.assert_allclose(served.v1(_instances(rows)), expected, rtol=1e-6)
        except ModelInvalid as error:
            outcome.refuse(str(error))


@pytest.mark.parametrize("name", NAMES)
def test_pickles(
    name: str, outcomes: Outcomes, estimators: Estimators, loop: asyncio.AbstractEventLoop
) -> None:
    with outcomes.judge(PICKLES, name) as outcome:
        model, rows = trained(name)

        async def ask(method: str) -> tuple[Tensor, ...]:
            loaded = await _loaded(estimators, name, model, method)
            found = await estimators.infer(loaded, [_tensor(rows)], limit_s=60, deadline_s=None)
            estimators.unload_soon(loaded)
            return found

        try:
            for method in _methods(model):
                _compare(loop.run_until_complete(ask(method)), getattr(model, method)(rows))
        except ModelInvalid as error:
            outcome.refuse(str(error))


async def _loaded(estimators: Estimators, name: str, model: Any, method: str) -> LoadedEstimator:
    content = io.BytesIO()
    joblib.dump(model, content)
    return await asyncio.to_thread(
        estimators.load_in_thread,
        f"default/{name}@1",
        memoryview(content.getvalue()),
        wants_probabilities=method == "predict_proba",
    )


def _methods(model: Any) -> list[str]:
    found = [method for method in TASKS if hasattr(model, method)]
    return found or ["predict"]


def _tensor(rows: Any) -> Tensor:
    if isinstance(rows, np.ndarray):
        return numeric_tensor("rows", rows)
    return bytes_tensor("rows", [str(each).encode() for each in rows])


def _instances(rows: Any) -> list[Any]:
    found: list[Any] = rows.tolist() if isinstance(rows, np.ndarray) else list(rows)
    return found


def _compare(outputs: tuple[Tensor, ...], expected: Any) -> None:
    arrays = expected if isinstance(expected, list) else [expected]
    assert len(outputs) == len(arrays)
    for output, array in zip(outputs, arrays, strict=True):
        values = np.asarray(array)
        if values.dtype.kind in "fiub":
            np.testing.assert_allclose(output.data, values, rtol=1e-6)
        else:
            assert plain_values(output).tolist() == values.tolist()
