from __future__ import annotations

import pytest

from registry.domain.accelerator import Accelerator, AcceleratorKind
from registry.domain.pod import PodInfo


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(AcceleratorKind(), "", id="not-reported"),
        pytest.param(AcceleratorKind("NVIDIA H200"), "NVIDIA H200|1", id="whole"),
        pytest.param(AcceleratorKind("NVIDIA H200", 0.25), "NVIDIA H200|0.25", id="quarter"),
        pytest.param(AcceleratorKind("H200|x", 0.1429), "H200|x|0.1429", id="slice"),
    ],
)
def test_a_kind_as_text(kind: AcceleratorKind, text: str) -> None:
    assert str(kind) == text
    assert AcceleratorKind.parse(text) == kind


def test_a_share_is_rounded_as_its_text_is() -> None:
    kind = PodInfo("a", "a:1", "n", share=1 / 7).kind
    assert AcceleratorKind.parse(str(kind)) == kind


def test_pods_of_one_product_and_share_are_of_one_kind() -> None:
    pods = [
        PodInfo(name, "a:1", "n", accelerator=Accelerator(f"GPU-{name}", "NVIDIA H200"), share=0.5)
        for name in "ab"
    ]
    assert pods[0].kind == pods[1].kind == AcceleratorKind("NVIDIA H200", 0.5)
