"""`make demo-llm`, and what it says before it downloads anything."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from registry.domain.model import ModelName, ModelSpec
from tests.runtime.conftest import Cluster
from tests.runtime.http import post
from tests.runtime.vllm_engine.conftest import write_python

ROOT = Path(__file__).resolve().parents[3]


def run(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / script, *words],
        env={**os.environ, "PILOTLIGHT_VLLM_PYTHON": "", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", ["demo-llm", "vllm"])
def test_nothing_is_downloaded_unless_asked(tmp_path: Path, script: str) -> None:
    done = run(script, HOME=str(tmp_path), PILOTLIGHT_HOME=str(tmp_path / "home"))
    assert done.returncode == 1
    assert "3 GB to download" in done.stderr
    assert "FLAGS=--yes" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_adapter_wakes_its_base_from_disk_where_engines_do_not_sleep(
    cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    python = write_python(tmp_path / "python", SMALL_SLEEPLESS="1")
    pod = cluster.pod("pod-b", engine_python=python, memory_bytes=2 << 30)
    cluster.declare("llama", texts / "llama")
    cluster.declare("other", texts / "llama")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    save_file({"a": np.ones(2)}, adapter / "adapter_model.safetensors")
    spec = ModelSpec(ModelName("default", "poet"), adapter.as_uri(), base="llama")
    cluster.do(lambda registry: registry.put_models([spec]))

    def start(model: str) -> str:
        found = post(f"{pod.url}/openai/v1/completions", {"model": model, "prompt": "x"})
        assert found.status_code == 200, found.text
        return found.headers["x-pilotlight-start"]

    first = [start(model) for model in ("llama", "poet", "other")]
    assert "warm" not in first
    assert start("poet") == "disk"


@pytest.mark.slow
def test_models_in_a_budget_for_one_are_answered_in_turn(vllm_python: str, tmp_path: Path) -> None:
    done = run("demo-llm", str(tmp_path), PILOTLIGHT_VLLM_PYTHON=vllm_python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "watch it in a browser: http://" in done.stdout
    assert done.stdout.count("12 tokens") == 4
    assert done.stdout.count("poet: from tier disk") == 1
    left = [
        each.parent.name
        for each in Path("/proc").glob("[0-9]*/cmdline")
        if str(tmp_path) in each.read_bytes().decode(errors="replace")
    ]
    assert not left
