"""The GPUs of a machine, as a stand-in for the driver's command lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pilotlight.platform.gpus import GpuShare, gpu_of_pod, visible_gpus

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Two GPUs."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho GPU-a\necho GPU-b\n")
    command.chmod(0o700)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, ("GPU-a", "GPU-b"), id="all"),
        pytest.param("1", ("GPU-b",), id="number"),
        pytest.param("1,0", ("GPU-b", "GPU-a"), id="order"),
        pytest.param("GPU-b", ("GPU-b",), id="uuid"),
        pytest.param("MIG-1", ("MIG-1",), id="mig"),
        pytest.param("", (), id="none"),
        pytest.param("-1", (), id="none-by-number"),
        pytest.param("7", (), id="unknown"),
    ],
)
def test_finds_the_gpus_that_are_visible(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    expected: tuple[str, ...],
) -> None:
    monkeypatch.setenv("PATH", environment["PATH"])
    chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(environment | chosen) == expected


def test_a_machine_without_a_driver_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({"PATH": str(tmp_path)}) == ()


@pytest.mark.parametrize(
    ("pods", "gpus", "expected"),
    [
        pytest.param(2, ("a", "b"), [("a", 0.0), ("b", 0.0)], id="one-each"),
        pytest.param(2, ("a",), [("a", 50.0), ("a", 50.0)], id="two-share"),
        pytest.param(3, ("a", "b"), [("a", 50.0), ("b", 0.0), ("a", 50.0)], id="uneven"),
        pytest.param(1, (), [("", 0.0)], id="no-gpu"),
    ],
)
def test_pods_take_the_gpus_in_turn(
    pods: int, gpus: tuple[str, ...], expected: list[tuple[str, float]]
) -> None:
    found = [gpu_of_pod(number, pods, gpus) for number in range(pods)]
    assert found == [GpuShare(gpu, share) for gpu, share in expected]
