"""Links between documents lead somewhere; the architecture shows every room; manifests agree."""

import json
import re
from pathlib import Path

import pytest
import yaml

from registry.domain.pod import CPU_SLOTS
from tests.kubernetes.page import MARK, PAGE, blocks

ROOT = Path(__file__).parents[1]
PAGES = sorted([each for at in ("", "docs/**/", "research/**/") for each in ROOT.glob(f"{at}*.md")])
PACKAGES = (
    "autoscaler",
    "common",
    "gateway",
    "load",
    "pilotlight",
    "registry",
    "research",
    "runtime",
    "variants",
    "workflows",
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_bodies_of_curl_are_json(page: Path) -> None:
    for body in re.findall(r"curl (?:[^\n]|(?<=\\)\n)*?-d '([^']*)'", page.read_text()):
        json.loads(body)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_shows_every_room(package: str) -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    tree = text.partition(f"    {package}/\n")[2].partition("\n\n")[0]
    rooms = {room.parent.name for room in (ROOT / package).glob("*/__init__.py")}
    assert set(re.findall(r"^ {6}(\w+)/", tree, re.MULTILINE)) == rooms


def test_the_record_of_gpus_has_every_package_of_the_runtime() -> None:
    text = (ROOT / "docs/runtime.md").read_text().partition("\n## What has run on a GPU\n")[2]
    table = text.partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "runtime").glob("*/__init__.py")}
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted({*packages, "runtime"})
    for name in re.findall(r"`(\w+\.py)`", table):
        assert list((ROOT / "runtime").rglob(name)), name


def test_the_pool_has_the_default_slots_and_knatives_target_is_their_number() -> None:
    assert "PILOTLIGHT_SLOTS" not in (ROOT / "manifests/base/pool/pool.yaml").read_text()
    component = ROOT / "manifests/components/knative/kustomization.yaml"
    patch = yaml.safe_load(component.read_text())["patches"][-1]
    targets = [
        each["value"]
        for each in yaml.safe_load(patch["patch"])
        if each["path"] == "/spec/predictor/scaleTarget"
    ]
    assert targets == [CPU_SLOTS]


def test_each_comment_of_the_installation_is_above_a_block_and_says_why_it_is_not_run() -> None:
    """A block without one is run by tests/kubernetes/test_a_page.py."""
    comments = re.findall(r"<!--.*?-->", PAGE.read_text(), re.DOTALL)
    marked = [each.above for each in blocks() if MARK.fullmatch(each.above)]
    assert marked == comments
    assert {each.tool for each in blocks()} == {"", "Helm", "kustomize"}
