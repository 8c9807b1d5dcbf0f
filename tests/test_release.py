"""scripts/release: what it makes, what it would run, and what it refuses."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.places import program
from tests.rendered import MANIFESTS

ROOT = MANIFESTS.parent
REGISTRY = "registry.example.com/ml"
IMAGES = ("platform", "runtime", "runtime-cuda")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for the PATH with what every machine has, and no tool of a release."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "cp", "dirname", "mkdir", "rm", "sed", "tee"):
        [found] = [path for each in ("/usr/bin", "/bin") if (path := Path(each) / name).exists()][
            :1
        ]
        (folder / name).symlink_to(found)
    return folder


def release(tools: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": str(tools),
        "PYTHON": sys.executable,
        "PILOTLIGHT_RELEASE": str(tools.parent / "out"),
        "HOME": os.environ["HOME"],
        **more,
    }
    return subprocess.run(
        [str(ROOT / "scripts" / "release"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_dry_run_names_each_missing_tool_and_prints_each_command(tools: Path) -> None:
    done = release(tools, "--dry-run", REGISTRY)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"missing: (\w+), its step is left out", done.stderr) == [
        "buildah",
        "helm",
        "cosign",
    ]
    commands = [line for line in done.stdout.splitlines() if line.startswith("+ ")]
    for name in IMAGES:
        image = f"{REGISTRY}/{name}:{VERSION}"
        assert any(
            "build --pull --platform linux/amd64,linux/arm64" in c and image in c for c in commands
        )
        assert any("manifest push --all" in c and f"docker://{image}" in c for c in commands)
        assert any("cosign sign" in c and f"{REGISTRY}/{name}@sha256:" in c for c in commands)
        assert any("cosign attest" in c and f"{name}.cdx.json" in c for c in commands)
        bill = json.loads((tools.parent / "out" / f"{name}.cdx.json").read_text())
        assert bill["bomFormat"] == "CycloneDX"
        assert bill["metadata"]["component"]["version"] == VERSION


def test_a_released_chart_names_its_registry_and_version(tools: Path) -> None:
    try:
        (tools / "helm").symlink_to(program("helm"))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    done = release(tools, "--dry-run", REGISTRY)
    assert done.returncode == 0, done.stderr
    assert (
        f"+ helm push {tools.parent}/out/pilotlight-{VERSION}.tgz oci://{REGISTRY}/charts"
        in done.stdout
    )
    packed = tools.parent / "out" / f"pilotlight-{VERSION}.tgz"
    with tarfile.open(packed) as archive:
        values = yaml.safe_load(archive.extractfile("pilotlight/values.yaml") or b"")
    assert values["images"]["registry"] == REGISTRY
    made = subprocess.run(
        [str(tools / "helm"), "template", "pilotlight", str(packed), "--kube-version", "1.34.4"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    found = set(re.findall(r"image: (\S+)", made.stdout))
    assert found == {
        f"{REGISTRY}/platform:{VERSION}",
        f"{REGISTRY}/runtime:{VERSION}",
        "docker.io/library/redis:7.4.7-alpine",
    }


def test_without_its_tools_it_refuses_before_anything_is_done(tools: Path) -> None:
    done = release(tools, REGISTRY, TORCH_INDEX="https://wheels.example.com/cpu")
    assert done.returncode == 1
    assert re.findall(r"missing: (\w+)$", done.stderr, re.MULTILINE) == [
        "buildah",
        "helm",
        "cosign",
    ]
    assert not (tools.parent / "out").exists()


@pytest.mark.parametrize("name", ["", "pilotlight", "pilotlight/ml", "registry.example.com"])
def test_a_registry_that_is_not_fully_qualified_is_refused(name: str, tools: Path) -> None:
    done = release(tools, "--dry-run", name)
    assert done.returncode == 2
    assert f"was '{name}'" in done.stderr


def test_a_tag_of_another_version_is_refused(tools: Path) -> None:
    done = release(tools, "--dry-run", REGISTRY, GITHUB_REF_TYPE="tag", GITHUB_REF_NAME="v9.9.9")
    assert done.returncode == 1
    assert f"the version v{VERSION}" in done.stderr


def test_project_chart_and_images_have_one_version() -> None:
    chart = yaml.safe_load((MANIFESTS / "chart" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    files = [*MANIFESTS.glob("base/**/*.yaml"), *MANIFESTS.glob("components/**/*.yaml")]
    tags = set()
    for path in (*files, *MANIFESTS.glob("pools/**/*.yaml")):
        text = path.read_text()
        tags |= set(re.findall(r"registry\.invalid/pilotlight/[a-z-]+:(\S+)", text))
        tags |= set(re.findall(r"newTag: \"(.*)\"", text))
    assert tags == {VERSION}


def test_the_workflow_does_what_the_script_does() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    steps = workflow["jobs"]["release"]["steps"]
    text = " ".join(step.get("run", "") + step.get("uses", "") for step in steps)
    for needed in ("scripts/release", "buildah", "helm", "cosign", "qemu-user-static"):
        assert needed in text
    assert workflow[True]["push"]["tags"] == ["v*"]  # YAML 1.1 reads `on` as true
