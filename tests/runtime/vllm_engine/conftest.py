"""Environments of engines: the small real one, and vLLM where PILOTLIGHT_VLLM_PYTHON names it."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

SMALL = Path(__file__).with_name("small")


@pytest.fixture(scope="session")
def small_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python in whose environment `vllm` is the small engine."""
    return write_python(tmp_path_factory.mktemp("python") / "python")


def write_python(path: Path, **variables: str) -> str:
    assignments = " ".join(f"{name}={value}" for name, value in variables.items())
    path.write_text(f'#!/bin/sh\nexec env PYTHONPATH={SMALL} {assignments} {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    python = os.environ.get("PILOTLIGHT_VLLM_PYTHON", "")
    if shutil.which(python) is None:
        pytest.skip("PILOTLIGHT_VLLM_PYTHON names no Python with vLLM: make test-vllm says how")
    return python


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama and a tiny Qwen, as published ones look."""
    from pilotlight.sample_models.make_model import make_model

    folder = tmp_path_factory.mktemp("texts")
    for kind in ("llama", "qwen2"):
        make_model(f"tiny-{kind}", folder / kind)
    return folder


def with_fault(model: Path, target: Path, **fault: object) -> Path:
    """A copy of a model, whose small engine has a fault."""
    shutil.copytree(model, target)
    path = target / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "small": fault}))
    return target
