"""`python -m benchmarks gpu`: parts, each with its section of `docs/benchmarks.md`.

Each takes minutes, and a machine may be lent for ten at a time: `--only copies`, `--only serving`,
`--only sharing`.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gpu import measure, rings, serving_marks, sharing, sharing_marks
from benchmarks.gpu.page import PARTS, with_section
from benchmarks.gpu.subject import Subject, cuda_subject, dry_subject
from benchmarks.machine import REPOSITORY, Machine, save
from benchmarks.marks import mark_lines
from benchmarks.tiers.models import MODELS, folder_of


@dataclass(frozen=True, slots=True)
class _Part:
    """What one part found."""

    report: str
    settings: dict[str, Any]
    samples: dict[str, Any]


def run(arguments: argparse.Namespace, machine: Machine) -> None:
    """Run the parts, print each as it is ready, save raw samples; `--docs`: write the page."""
    subject = dry_subject() if arguments.dry else cuda_subject()
    if subject is None:
        print("## On a GPU: skipped, no CUDA device was found (--dry: a dry run on the CPU)")
        return
    wanted = [part for part in PARTS if any(each in part for each in arguments.only.split(","))]
    for part in wanted:
        found = _RUNS[part](arguments, subject)
        report = f"On {subject.name} ({machine.line()}):\n\n{found.report}"
        print(f"## On a GPU: {part}\n\n{report}\n", flush=True)
        if arguments.docs and not arguments.dry:
            page = REPOSITORY / "docs" / "benchmarks.md"
            page.write_text(with_section(page.read_text(), part, report))
        settings = {"device": subject.name} | found.settings
        as_text = {name: str(value) for name, value in settings.items()}
        path = save(f"gpu-{part}", machine, as_text, found.samples)
        print(f"Raw samples: {path.relative_to(REPOSITORY)}\n", flush=True)
    if arguments.dry:
        print("Skipped without CUDA: MPS. The figures say nothing of a GPU.")


def _copies(arguments: argparse.Namespace, subject: Subject) -> _Part:
    if arguments.dry:
        tiny = folder_of("tiny-t5")
        plan = measure.Plan(
            tiny,
            tiny,
            repeats=1,
            inferences=2,
            cycles=2,
            pinned_bytes=1 << 16,
            rings=rings.RINGS[:1],
        )
    else:
        plan = measure.Plan(
            served=folder_of("t5-small"),
            loaded=folder_of("t5-base" if arguments.quick else "t5-large"),
            repeats=_repeats(arguments),
            started=tuple(folder_of(name) for name in (MODELS[:1] if arguments.quick else MODELS)),
        )
    found = measure.measure(subject, plan)
    report = f"{measure.summary(found)}\n\n{mark_lines(list(measure.marks(found)))}"
    return _Part(report, asdict(plan), asdict(found))


def _serving(arguments: argparse.Namespace, subject: Subject) -> _Part:
    plan = (
        serving_marks.DRY
        if arguments.dry
        else serving_marks.ServingPlan(repeats=_repeats(arguments))
    )
    found = serving_marks.measure_serving_marks(subject, plan)
    marks = list(serving_marks.serving_marks(found))
    report = f"{serving_marks.serving_summary(found)}\n\n{mark_lines(marks)}"
    return _Part(report, asdict(plan), asdict(found))


def _sharing(arguments: argparse.Namespace, subject: Subject) -> _Part:
    if arguments.dry:
        plan = sharing.SharingPlan(
            folder_of("tiny-bert"), clients=4, rounds=1, bursts=2, seconds=0.3
        )
    else:
        plan = sharing.SharingPlan(folder_of("bert-base"), rounds=arguments.repeats or 2)
    found = sharing.measure_sharing(subject.engine.device.type, plan)
    marks = list(sharing_marks.sharing_marks(found))
    report = f"{sharing_marks.sharing_summary(found)}\n\n{mark_lines(marks)}"
    return _Part(report, asdict(plan), asdict(found))


def _repeats(arguments: argparse.Namespace) -> int:
    return int(arguments.repeats or (1 if arguments.quick else 5))


_RUNS: dict[str, Callable[[argparse.Namespace, Subject], _Part]] = {
    "copies": _copies,
    "serving": _serving,
    "sharing": _sharing,
}
