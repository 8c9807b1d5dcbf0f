"""What is in the images: what their processes import, and nothing for tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
        "gateway.grpc.server",
        "gateway.sneakpeek.__main__",
        "gateway.applications.window_planner",
        "autoscaler.__main__",
        "controller.main",
        "workflows.__main__",
        "workflows.runner",
        "pilotlight.cli",
    ),
    "runtime": ("runtime.__main__", "runtime.pod.composition", "runtime.engines.building"),
}
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
