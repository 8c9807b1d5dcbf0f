"""KServe's own sample InferenceServices, and what `pilotlight apply` says of each.

They are read where `scripts/kubernetes/build` unpacks KServe's Go module.
`python -m tests.registry.inference_service.kserve_samples` prints the table of the docs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from registry.errors import InvalidModel
from registry.inference_service.reader import KIND, read_documents

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path("~/.cache/pilotlight/kubernetes/source").expanduser()
MODULE = "github.com_kserve_kserve@v0.20.0"
FOLDERS = ("docs/samples", "test/benchmark")


@dataclass(frozen=True)
class Sample:
    """One InferenceService of a file."""

    file: str
    kind: str
    accepted: bool
    says: str
    """What is missing, or the first mistake; empty: it is served."""

    @property
    def row(self) -> str:
        verdict = "accepted" if self.accepted else "refused"
        return f"| `{self.file}` | {self.kind} | {verdict} | {self.says} |"


def module_folder() -> Path | None:
    found = SOURCES / MODULE
    return found if found.is_dir() else None


def samples(module: Path) -> Iterator[Sample]:
    """All objects that are YAML, in the order of their files."""
    for folder in FOLDERS:
        for path in sorted((module / folder).rglob("*.y*ml")):
            try:
                documents = list(yaml.safe_load_all(path.read_text()))
            except yaml.YAMLError:
                continue  # a template with placeholders
            for document in documents:
                if isinstance(document, dict) and document.get("kind") == KIND:
                    yield _read(str(path.relative_to(module)), document)


def _read(file: str, document: dict[str, object]) -> Sample:
    kind = _kind(document)
    try:
        (spec,) = read_documents([(file, yaml.safe_dump(document))])
    except InvalidModel as error:
        problem = str(error).splitlines()[0]
        return Sample(file, kind, False, _cell(problem.partition(": ")[2].partition(": ")[2]))
    return Sample(file, kind, True, _cell(spec.needs))


def _kind(document: dict[str, object]) -> str:
    spec = document.get("spec")
    predictor = spec.get("predictor", {}) if isinstance(spec, dict) else {}
    model = predictor.get("model")
    if isinstance(model, dict):
        return str(model.get("modelFormat", {}).get("name"))
    kinds = [key for key, value in predictor.items() if isinstance(value, (dict, list))]
    return ", ".join(sorted(kinds)) or "-"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("|", "/")).strip()


def table(module: Path) -> list[str]:
    found = list(samples(module))
    accepted = sum(each.accepted for each in found)
    waiting = sum(each.accepted and bool(each.says) for each in found)
    return [
        f"{accepted} of {len(found)} objects are accepted, {waiting} of them with a condition:",
        "",
        "| Sample | Format | Verdict | What is missing, or the way out |",
        "|---|---|---|---|",
        *(each.row for each in found),
    ]


if __name__ == "__main__":
    folder = module_folder()
    if folder is None:
        raise SystemExit(f"{SOURCES / MODULE} is not there: run scripts/kubernetes/build")
    print("\n".join(table(folder)))  # noqa: T201
