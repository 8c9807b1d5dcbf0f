"""KServe's own sample InferenceServices, and what `pilotlight apply` says of each.

They are read where `scripts/kubernetes/build` unpacks KServe's Go module.
`python -m tests.registry.inference_service.kserve_samples` prints the table of the docs, then each
file.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from registry.errors import InvalidModel
from registry.inference_service.reader import KIND, read_documents

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


def table(found: Sequence[Sample]) -> list[str]:
    """A row for each condition or mistake, with the number of samples that have it."""
    accepted = sum(each.accepted for each in found)
    waiting = sum(each.accepted and bool(each.says) for each in found)
    groups: dict[tuple[bool, str], list[Sample]] = defaultdict(list)
    for each in found:
        for says in filter(None, re.split("; (?=spec)", each.says)):
            groups[each.accepted, re.split("[:;] ", says)[0]].append(each)
    return [
        f"{accepted} of {len(found)} objects are accepted, {waiting} of them with a condition:",
        "",
        "|Verdict|What is missing (the message has the way out)|Formats|Objects|",
        "|---|---|---|---|",
        *(
            f"|{'accepted' if is_accepted else 'refused'}|{says}|{_formats(group)}|{len(group)}|"
            for (is_accepted, says), group in groups.items()
        ),
    ]


def _formats(group: Sequence[Sample]) -> str:
    return ",".join(sorted({kind for each in group for kind in each.kind.split(", ")}))


if __name__ == "__main__":
    folder = module_folder()
    if folder is None:
        raise SystemExit(f"{SOURCES / MODULE} is not there: run scripts/kubernetes/build")
    found = list(samples(folder))
    print("\n".join(table(found)))  # noqa: T201
    for each in found:
        print(f"{each.file}: {each.says or 'served as it is'}")  # noqa: T201
