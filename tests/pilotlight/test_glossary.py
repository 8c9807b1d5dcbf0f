"""Pages explain every word that users see: docs/glossary.md, and those of policies, annotations."""

import re
from enum import StrEnum

import pytest

from autoscaler.desired_pods import PodUse
from autoscaler.policy import ActionReason
from gateway.routing.decision import Reason
from registry.domain.application import SelectionPolicy
from registry.domain.model import LoadingPolicyName, PlacementName, RoutingPolicy, Tier
from registry.inference_service.annotations import KEYS, PREFIX
from tests.servers import REPOSITORY
from workflows.plan.problem import SchedulingPolicy

SECTIONS = {
    "Where a model is: tiers": Tier,
    "How a request was routed: `x-pilotlight-reason`": Reason,
    "What the autoscaler does, and why": ActionReason,
    "How a pod is used": PodUse,
}
POLICIES = {
    "annotations.md": ("Which routing policy", RoutingPolicy),
    "loading-policies.md": ("Loading policies", LoadingPolicyName),
    "placement.md": ("Planners", PlacementName),
    "selection.md": ("Applications and the selection of variants", SelectionPolicy),
    "workflows.md": ("Placement", SchedulingPolicy),
}
EXPLAINED = [
    *[pytest.param("glossary.md", title, words, id=title) for title, words in SECTIONS.items()],
    *[pytest.param(page, *section, id=page) for page, section in POLICIES.items()],
]


@pytest.mark.parametrize(("page", "title", "words"), EXPLAINED)
def test_every_word_is_explained_once(page: str, title: str, words: type[StrEnum]) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    section = text.partition(f"# {title}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\|( `[^|]+)\|", section, re.MULTILINE)
    own = [cell for cell in cells if " *" not in cell and "plug-in" not in cell]
    found = sorted(word for cell in own for word in re.findall(r"`([a-z-]+)`", cell))
    assert found == sorted(str(each) for each in words)


def test_every_annotation_is_explained_once() -> None:
    text = (REPOSITORY / "docs" / "annotations.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    keys = [key for row in rows for key in re.findall(rf"`{re.escape(PREFIX)}([a-z-]+)`", row)]
    assert sorted(keys) == sorted(KEYS)
