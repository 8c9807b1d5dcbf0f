"""Captured forwards: right for other weights at the same addresses, kept while a model is away."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

from pilotlight.sample_models.make_model import make_model
from registry.domain.model import ModelSpec
from runtime.device.forward_graphs import CudaGraphMaker, ForwardGraphs, GraphMaker
from runtime.device.staged_memory import StagedMemory
from tests.runtime.device.test_device_lost import device_error
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.fake_graphs import FakeGraphMaker
from tests.runtime.local_pod import LocalPod, local_pod, spec_of

ILLEGAL_ADDRESS = 700
TEXTS = ("some words", "other words", "a few words more")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, scale: float = 1.0, reads: bool = False) -> Any:
        result = self.layer(x).relu() * scale
        if reads and float(result.sum()) < -1:  # asks the device
            return None
        return {"y": result}


def made(maker: GraphMaker, device: str = "cpu", **options: int) -> tuple[Net, ForwardGraphs]:
    net = Net().to(device).eval()
    graphs = ForwardGraphs(net, maker, **options)
    net.forward = graphs  # type: ignore[method-assign]
    graphs.weights_at("here")
    return net, graphs


@pytest.fixture(
    params=[
        pytest.param((FakeGraphMaker, "cpu"), id="fake"),
        pytest.param(
            (lambda: CudaGraphMaker(threading.Lock()), "cuda"),
            id="cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
            ],
        ),
    ]
)
def kind(request: pytest.FixtureRequest) -> tuple[Callable[[], GraphMaker], str]:
    found: tuple[Callable[[], GraphMaker], str] = request.param
    return found


def test_graphs_answer_as_the_network_does(kind: tuple[Callable[[], GraphMaker], str]) -> None:
    make, device = kind
    net, graphs = made(make(), device)
    plain = Net().to(device)
    plain.load_state_dict(net.state_dict())
    kept = []
    with torch.inference_mode():
        for number in range(8):
            for rows in (1, 4):
                x = torch.randn(rows, 3, device=device)
                kept.append((net(x=x)["y"], plain(x=x)["y"], number))
    assert len(graphs) == 2
    for found, expected, _ in kept:  # later runs change no earlier answer
        torch.testing.assert_close(found, expected)


def test_graphs_read_what_lies_at_their_addresses(
    kind: tuple[Callable[[], GraphMaker], str],
) -> None:
    make, device = kind
    net, graphs = made(make(), device, min_uses=1)
    x = torch.ones(2, 3, device=device)
    with torch.inference_mode():
        before = net(x=x)["y"]
        net.layer.weight.fill_(2.0)
        net.layer.bias.zero_()
        assert not torch.equal(net(x=x)["y"], before)
        assert net(x=x)["y"].tolist() == [[6.0, 6.0]] * 2
    assert len(graphs) == 1


def test_rare_shapes_are_not_captured() -> None:
    net, graphs = made(maker := FakeGraphMaker(), min_uses=3)
    with torch.inference_mode():
        for rows in range(1, 9):
            for _ in range(2):
                net(x=torch.ones(rows, 3))
    assert len(graphs) == len(maker.graphs) == 0


def test_graphs_are_bounded_and_share_a_pool() -> None:
    net, graphs = made(maker := FakeGraphMaker(), min_uses=1, max_graphs=2)
    with torch.inference_mode():
        for rows in (1, 2, 1, 3, 1):
            net(x=torch.ones(rows, 3))
    assert len(graphs) == 2
    assert len(maker.graphs) == 3  # one row was used last, and stayed
    assert maker.pools == 1


def test_work_that_asks_the_device_runs_as_it_is() -> None:
    net, graphs = made(maker := FakeGraphMaker(), min_uses=1)
    with torch.inference_mode():
        for _ in range(3):
            assert net(x=torch.ones(1, 3), reads=True)["y"].shape == (1, 2)
    assert (len(graphs), maker.graphs) == (0, [])


def test_a_capture_that_cuda_refuses_gets_the_next_one_a_fresh_pool() -> None:
    class Refusing(FakeGraphMaker):
        def capture(self, work: Callable[[], Any], pool: object) -> tuple[Any, Any]:
            if pool == 1:
                raise device_error(900)  # not permitted while the stream is capturing
            return super().capture(work, pool)

    net, graphs = made(maker := Refusing(), min_uses=1)
    with torch.inference_mode():
        for rows in (1, 2):
            assert net(x=torch.ones(rows, 3))["y"].shape == (rows, 2)
    assert len(graphs) == 1
    assert maker.pools == 2


def test_a_device_that_is_lost_in_a_capture_is_no_network_without_graphs() -> None:
    class Lost(FakeGraphMaker):
        def capture(self, work: Callable[[], Any], pool: object) -> tuple[Any, Any]:
            raise device_error(ILLEGAL_ADDRESS)

    net, _ = made(Lost(), min_uses=1)
    with torch.inference_mode(), pytest.raises(torch.AcceleratorError):
        net(x=torch.ones(1, 3))


def test_other_arguments_and_gradients_run_as_they_are() -> None:
    net, graphs = made(FakeGraphMaker(), min_uses=1)
    net(x=torch.ones(1, 3))  # with gradients
    with torch.inference_mode():
        net(torch.ones(1, 3))
        graphs.weights_at(None)
        net(x=torch.ones(1, 3))
    assert len(graphs) == 0


def other_weights(models: Path, folder: Path) -> Path:
    make_model("tiny-bert", folder)
    tensors = load_file(models / "tiny-bert" / "model.safetensors")
    save_file(
        {name: tensor * 1.5 for name, tensor in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder


def numbers(answers: list[list[list[bytes]]]) -> npt.NDArray[np.float32]:
    """Of all outputs, which a mask of ones may round in another way than none."""
    return np.array(
        [[np.frombuffer(outputs[0], np.float32) for outputs in each] for each in answers]
    )


def test_a_network_with_other_weights_is_answered_by_its_own_graphs(
    models: Path, tmp_path: Path
) -> None:
    specs = [
        spec_of("one", models / "tiny-bert"),
        spec_of("two", other_weights(models, tmp_path / "two")),
    ]
    maker = FakeGraphMaker()
    engine = FakeEngine(graphs=maker)

    async def answers(pod: LocalPod, spec: ModelSpec) -> list[list[bytes]]:
        await pod.load(spec)
        found = [await pod.answer(spec, text) for text in TEXTS * 4]
        await pod.unload(spec)
        return found

    async def plain() -> list[list[list[bytes]]]:
        async with local_pod(tmp_path / "plain", memory=StagedMemory(FakeEngine())) as pod:
            return [await answers(pod, spec) for spec in specs]

    async def with_graphs() -> list[list[list[bytes]]]:
        async with local_pod(tmp_path / "graphs", memory=StagedMemory(engine)) as pod:
            found = [await answers(pod, spec) for spec in specs]
            captured.append(len(maker.graphs))
            return [*found, *[await answers(pod, spec) for spec in specs]]

    captured: list[int] = []
    expected = asyncio.run(plain())
    assert expected[0] != expected[1]
    found = asyncio.run(with_graphs())
    np.testing.assert_allclose(numbers(found), numbers([*expected, *expected]), atol=1e-5)
    assert captured[0] == 2  # of each model one: texts of up to 16 tokens have one shape
    assert sum(graph.replays for graph in maker.graphs) > 0


def test_generation_is_as_without_graphs(models: Path, tmp_path: Path) -> None:
    spec = spec_of("t5", models / "tiny-t5")

    async def answer(engine: FakeEngine) -> list[bytes]:
        async with local_pod(tmp_path / str(id(engine)), memory=StagedMemory(engine)) as pod:
            await pod.load(spec)
            for _ in range(4):
                found = await pod.answer(spec)
            return found

    with_graphs = FakeEngine(graphs=FakeGraphMaker())
    assert asyncio.run(answer(with_graphs)) == asyncio.run(answer(FakeEngine()))
