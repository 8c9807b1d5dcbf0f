"""The chart's values with their defaults, and kustomize's components, overlays and pools."""

from collections.abc import Iterator
from typing import Any

import yaml

from tests.servers import REPOSITORY
from tests.surface.recorded import assert_recorded

MANIFESTS = REPOSITORY / "manifests"


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else key)
    else:
        yield f"{path}: {value!r}"


def test_values_of_the_chart_are_as_recorded() -> None:
    values = yaml.safe_load((MANIFESTS / "chart" / "values.yaml").read_text())
    assert_recorded("chart_values", _leaves(values, ""))


def test_kustomizations_are_as_recorded() -> None:
    found = sorted(MANIFESTS.rglob("kustomization.yaml"))
    assert_recorded("kustomizations", (str(each.parent.relative_to(REPOSITORY)) for each in found))
