"""Exported programs and image generation: imported only with a model of that format."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import servers

CHECK = """
import sys
import runtime.pod.lifecycle
OPTIONAL = (
    "diffusers", "runtime.engines.images", "runtime.engines.programs", "runtime.openai.image_route",
    "runtime.tasks.program_batching", "runtime.tasks.tensor_program", "runtime.tasks.text_to_image",
    "runtime.weights.archive", "runtime.engines.libraries", "runtime.tasks.tabular", "onnxruntime",
    "xgboost", "lightgbm", "sklearn", "skops",
)
print(*(name for name in sys.modules if name.startswith(OPTIONAL)))
"""


@pytest.mark.slow
def test_pod_starts_without_optional_formats() -> None:
    process = subprocess.run(
        [sys.executable, "-c", CHECK],
        check=True,
        capture_output=True,
        text=True,
        cwd=servers.REPOSITORY,
    )
    assert process.stdout.split() == []
