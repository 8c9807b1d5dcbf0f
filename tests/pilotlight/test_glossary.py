"""docs/glossary.md explains every word that users see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from autoscaler.planning.pod_use import PodUse
from autoscaler.planning.policy import ActionReason
from gateway.routing.decision import Reason
from registry.domain.model import Tier
from tests.servers import REPOSITORY

if TYPE_CHECKING:
    from enum import StrEnum

SECTIONS = {
    "Where a model is: tiers": Tier,
    "How a request was routed: `x-pilotlight-reason`": Reason,
    "What the autoscaler does, and why": ActionReason,
    "How a pod is used": PodUse,
}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_word_is_explained_once(title: str) -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text()
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    words: type[StrEnum] = SECTIONS[title]
    found = re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)
    assert found == sorted(str(each) for each in words)
