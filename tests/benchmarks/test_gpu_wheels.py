"""What travels to a GPU machine without registries suffices for its tests and benchmarks."""

import re
import subprocess
import sys
from typing import Final

import pytest

from tests.servers import REPOSITORY

IN_IMAGES: Final = """
    annotated-doc anyio attrs certifi charset-normalizer click cloudpickle
    cuda-bindings cuda-pathfinder execnet filelock
    fsspec grpcio h11 hf-xet httpcore hypothesis idna iniconfig jinja2 markupsafe mpmath
    networkx numpy packaging pandas pillow pip pluggy prometheus-client pygments pytest
    pytest-xdist python-dateutil pyyaml regex requests rich safetensors scipy setuptools six
    sortedcontainers sympy tabulate tokenizers torch tqdm triton typer typing-extensions urllib3
    uvloop
""".split()  # noqa: SIM905  # a list of this length
"""Packages of an image with CUDA and torch, as one listed them on 2026-11-17."""

WITHOUT_OTHERS: Final = """
import importlib.metadata as metadata
import sys
from importlib.machinery import PathFinder

there = set(sys.argv[1].split(","))
owners = metadata.packages_distributions()

def is_there(name):
    found = owners.get(name.partition(".")[0])
    return not found or any(each.lower().replace("_", "-") in there for each in found)

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return super().find_spec(name, path, target) if is_there(name) else None

# pytest would import the plug-ins of every package that is installed here
absent = [
    f"-pno:{plugin.name}"
    for plugin in metadata.entry_points(group="pytest11")
    if plugin.dist.name.lower().replace("_", "-") not in there
]
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
import pytest
raise SystemExit(pytest.main([*absent, *sys.argv[2:]]))
"""


def carried() -> list[str]:
    return (REPOSITORY / "scripts" / "gpu-wheels").read_text().split()


def test_wheels_that_travel_are_locked() -> None:
    locked = set(re.findall(r"^([a-z0-9.-]+)==", lock(), re.MULTILINE))
    assert sorted(set(carried()) - locked) == []


def lock() -> str:
    return (REPOSITORY / "requirements.lock").read_text()


def collect(names: list[str]) -> subprocess.CompletedProcess[str]:
    marked = [
        str(path)
        for path in sorted((REPOSITORY / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text() and path.name != "test_gpu_wheels.py"
    ]
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-W", "default"]
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_OTHERS, ",".join(names), *options, *marked],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_tests_of_a_gpu_import_only_what_travels_or_is_in_images() -> None:
    ran = collect([*IN_IMAGES, *carried()])
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "test_cuda.py" in ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_package_that_does_not_travel_is_missed() -> None:
    ran = collect([*IN_IMAGES, *(name for name in carried() if name != "kserve")])
    assert "No module named 'kserve'" in ran.stdout + ran.stderr
