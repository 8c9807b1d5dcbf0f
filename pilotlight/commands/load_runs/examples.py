"""The flag `--examples` of `load run`: an application's examples, judged by its declaration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from load.generator.content import Content, ContentKind
from load.generator.example_rules import ExampleRules
from load.generator.labelled_bodies import read_rules_examples
from load.labelled_examples import InvalidExamples
from pilotlight.commands.object_names import parse_model_names
from pilotlight.commands.target import require_known
from pilotlight.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.commands.target import PlatformTarget
    from registry.domain.application import ApplicationSpec


def read_example_options(options: Sequence[str], target: PlatformTarget) -> dict[str, Content]:
    """Contents by application of `APPLICATION=FILE`; raises InvalidInput with all mistakes."""
    if not options:
        return {}
    problems: list[str] = []
    pairs = []
    for option in options:
        name, equals, file = option.partition("=")
        if name and equals and file:
            pairs.append((name, file))
        else:
            problems.append(f"--examples must be APPLICATION=FILE, was {option!r}")
    applications = asyncio.run(target.cluster()).applications
    names = parse_model_names([name for name, _ in pairs], None)
    require_known([str(name) for name in names], [str(each) for each in applications])
    found = {}
    for application, (_, file) in zip(names, pairs, strict=True):
        rules = _rules(applications[application], file)
        try:
            read_rules_examples(rules)
        except InvalidExamples as error:
            problems += error.problems
        found[str(application)] = Content(ContentKind.EXAMPLES, examples=rules)
    if problems:
        raise InvalidInput(problems)
    return found


def _rules(application: ApplicationSpec, file: str) -> ExampleRules:
    path = str(Path(file).expanduser().absolute())
    return ExampleRules(path, application.output, application.penalty, application.deadline_s)
