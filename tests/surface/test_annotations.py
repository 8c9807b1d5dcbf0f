"""The keys of `pilotlight.io/` annotations: the field, its default, and what is allowed."""

from collections.abc import Iterator
from dataclasses import MISSING, fields

from registry.domain.model import ModelPolicy
from registry.inference_service.annotations import KEYS, PREFIX, parse_annotations
from tests.servers import REPOSITORY
from tests.surface.recorded import assert_recorded

DEFAULTS = {each.name: each.default for each in fields(ModelPolicy) if each.default is not MISSING}


def _lines() -> Iterator[str]:
    for key, annotation in KEYS.items():
        default = DEFAULTS.get(annotation.field, "none")
        (problem,) = parse_annotations({PREFIX + key: "?"}).problems
        allowed = problem.partition(" must be ")[2].rpartition(", was ")[0]
        yield f"{PREFIX}{key}, default {getattr(default, 'value', default)}; {allowed}"
    yield "documented:"
    for line in (REPOSITORY / "docs/annotations.md").read_text().splitlines():
        if line.startswith(f"| `{PREFIX}"):
            yield "    " + ", default ".join(each.strip() for each in line.split("|")[1:3])


def test_annotations_are_as_recorded() -> None:
    assert_recorded("annotations", _lines())
