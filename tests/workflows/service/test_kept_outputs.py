"""Outputs that a pod keeps and does not send are lost, as those of a pod that is gone."""

import asyncio
import socket

import pytest

from common.inference_protocol.tensors import TensorReference
from registry.domain.model import ModelName
from tests.workflows.service.alone import new_steps
from workflows import steps
from workflows.errors import InputsLost
from workflows.run import Run, RunStep
from workflows.values import StoredTensor


async def test_a_pod_that_does_not_answer_has_lost_what_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "FETCH_TIMEOUT_S", 0.2)
    name = ModelName("default", "m")
    run, step = Run("r", name, {}, 0.0, 60.0, "greedy"), RunStep(0, name, {}, 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        kept = TensorReference("one", f"{host}:{port}", 8)
        step.outputs = {"x": StoredTensor("x", "FP32", (2,), b"", kept)}
        async with asyncio.TaskGroup() as group, asyncio.timeout(10):
            with pytest.raises(InputsLost, match="that keeps 'x' is gone"):
                await new_steps(group).fetch(run, step)
