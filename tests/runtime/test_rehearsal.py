"""What serves on the CPU serves on a device apart from it: nothing is left in the wrong place.

No GPU is needed: the device is `other_device.OtherTensor`, on which torch refuses what it refuses
on a GPU. The answers must be those of the CPU, whatever tier a model was loaded from.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import servers
from tests.runtime.rehearsal import kinds

pytestmark = pytest.mark.slow

REFUSALS = """
import torch
from tests.runtime.other_device import register_device
device = register_device()
there = torch.ones(3, device=device)
here = torch.ones(3)
for act in (lambda: there + here, there.numpy, lambda: torch.stack([here, there])):
    try:
        act()
    except (RuntimeError, TypeError) as error:
        print(error)
print((there + 1).cpu().numpy().tolist())
"""


def rehearse(device: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.runtime.rehearsal", str(folder), device]
    ran = subprocess.run(command, check=True, cwd=servers.REPOSITORY, stdout=subprocess.PIPE)
    answers: dict[str, Any] = json.loads(ran.stdout)
    return answers


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return rehearse("other", tmp_path_factory.mktemp("all"))


@pytest.mark.parametrize("kind", kinds())
def test_a_device_that_is_not_the_cpu_answers_as_the_cpu(
    rehearsed: dict[str, Any], kind: str
) -> None:
    expected = rehearsed["cpu"][kind][0]
    for answers in rehearsed["there"][kind]:
        assert len(answers) == len(expected)
        for found, wanted in zip(answers, expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_every_byte_comes_back(rehearsed: dict[str, Any]) -> None:
    assert rehearsed["left"] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_one_answer_from_every_tier(tmp_path: Path) -> None:
    """Near to the CPU's where nothing is drawn: a GPU draws and rounds in its own way."""
    answers = rehearse("cuda", tmp_path)
    for first, *others in answers["there"].values():
        for other in others:
            for found, wanted in zip(other, first, strict=True):
                np.testing.assert_allclose(found, wanted, atol=1e-3)
    for kind in ("text-classification", "text-embedding", "image-classification"):
        for found, wanted in zip(answers["there"][kind][0], answers["cpu"][kind][0], strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-2)


def test_the_stand_in_refuses_what_a_gpu_refuses() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", REFUSALS], check=True, cwd=servers.REPOSITORY, stdout=subprocess.PIPE
    )
    *refusals, sums = ran.stdout.decode().splitlines()
    assert len(refusals) == 3
    assert sums == "[2.0, 2.0, 2.0]"
