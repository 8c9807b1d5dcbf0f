"""The fields of KServe's schemas, and the table of docs/compatibility.md.

`kserve_fields.txt` has the names of the fields of each object that `fields.OBJECTS` has. `python -m
tests.registry.inference_service.kserve_fields` writes it from KServe's Go module, where
`scripts/kubernetes/build` unpacks it, and prints the table.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from registry.inference_service.fields import ANNOTATIONS, LABELS, LEGACY_KINDS, OBJECTS, Verdict
from tests.registry.inference_service.kserve_samples import SOURCES, module_folder

LIST: Final = Path(__file__).with_name("kserve_fields.txt")
CRDS: Final = "config/crd/full/serving.kserve.io_{}s.yaml"


def read_list() -> dict[tuple[str, str], frozenset[str]]:
    """Names of fields by kind and object."""
    found = {}
    for line in LIST.read_text().splitlines():
        kind, path, *names = line.split()
        found[kind, path.removesuffix(":")] = frozenset(names)
    return found


def fields_of_module(module: Path) -> dict[tuple[str, str], frozenset[str]]:
    """The same from KServe's module."""
    found = {}
    for kind, objects in OBJECTS.items():
        spec = _schema(module, kind)["properties"]["spec"]
        for path in objects.keys() - {ANNOTATIONS, LABELS}:
            found[kind, path] = frozenset(_names(spec, path.split(".")[1:]))
    return found


def _schema(module: Path, kind: str) -> Mapping[str, Any]:
    text = (module / CRDS.format(kind.lower())).read_text()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    [version] = yaml.load(text, Loader=loader)["spec"]["versions"]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def _names(schema: Mapping[str, Any], path: list[str]) -> Iterator[str]:
    """Of `model` also those that only the older forms have."""
    if not path:
        yield from schema.get("items", schema)["properties"]
        return
    key, *rest = path
    if key == "*":
        yield from _names(schema["additionalProperties"], rest)
        return
    inner = schema["properties"]
    keys = [key, *(set(LEGACY_KINDS) & inner.keys())] if key == "model" else [key]
    for each in keys:
        if key.endswith("[]"):
            yield from _names(inner[key.removesuffix("[]")]["items"], rest)
        elif each == key or not rest or rest[0] in inner[each]["properties"]:
            yield from _names(inner[each], rest)


def table() -> list[str]:
    """A row for each meaning, with all fields that have it."""
    rows: dict[str, list[str]] = {}
    for kind, objects in OBJECTS.items():
        for path, rules in objects.items():
            place = path if kind == "InferenceService" else f"{kind}:{path}"
            for rule in (each for each in rules if each.says):
                names = ",".join(rule.names)
                field = f"{place}[{names}]" if path == ANNOTATIONS else f"{place}.{{{names}}}"
                verdict = (
                    ""
                    if rule.verdict is Verdict.HONOURED
                    else f"**{rule.verdict.replace('-', ' ')}**: "
                )
                single = field.replace("{", "").replace("}", "") if len(rule.names) == 1 else field
                rows.setdefault(f"{verdict}{rule.says}", []).append(f"`{single}`")
    found = [f"|{', '.join(fields)}|{meaning}|" for meaning, fields in rows.items()]
    return ["|Field|Here|", "|---|---|", *found]


def main() -> None:
    module = module_folder()
    if module is None:
        raise SystemExit(f"KServe's module is not in {SOURCES}: run scripts/kubernetes/build")
    lines = [
        f"{kind} {path}: {' '.join(sorted(names))}\n"
        for (kind, path), names in sorted(fields_of_module(module).items())
    ]
    LIST.write_text("".join(lines))
    print("\n".join(table()))  # noqa: T201


if __name__ == "__main__":
    main()
