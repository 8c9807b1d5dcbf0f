"""The manifests as kustomize renders them, each combination once per process."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

GIB = 1 << 30
MANIFESTS = Path(__file__).parents[1] / "manifests"
OBJECTS = dict[tuple[str, str], dict[str, Any]]


def kustomized(
    *components: str,
    overlay: str = "minimal",
    pools: Sequence[str] = (),
    objects: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> OBJECTS:
    """The objects of an overlay with components, by kind and name; skips without kubectl.

    `objects`: resources of the overlay's own.
    """
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    resources = [f"overlays/{overlay}", *(f"pools/{each}" for each in pools)]
    return deepcopy(
        _kustomized(tuple(resources), components, yaml.safe_dump_all(objects), json.dumps(more))
    )


@cache
def _kustomized(
    resources: Sequence[str], components: Sequence[str], objects: str, more: str
) -> OBJECTS:
    with tempfile.TemporaryDirectory() as folder:
        here = os.path.relpath(MANIFESTS, Path(folder).resolve())
        content = {
            "resources": [*(f"{here}/{each}" for each in resources), *["own.yaml"][: len(objects)]],
            "components": [f"{here}/components/{each}" for each in components],
            **json.loads(more),
        }
        (Path(folder) / "own.yaml").write_text(objects)
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(content))
        return {
            (each["kind"], each["metadata"]["name"]): each for each in load_all(run_kubectl(folder))
        }


def helm_chart(folder: Path) -> Path:
    """The Helm chart, put together in `folder`."""
    subprocess.run([MANIFESTS.parent / "scripts" / "chart", folder], check=True)
    return folder


def run_kubectl(folder: str) -> str:
    """What `kubectl kustomize` prints of a folder with a kustomization."""
    made = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


def load_all(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML text, by libyaml where PyYAML has it, which is faster."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(text, Loader=loader) if each]


def quantity(text: str) -> float:
    """The number of a quantity such as `10Gi`."""
    number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"": 1, "Gi": GIB, "Mi": 1 << 20}[unit]
