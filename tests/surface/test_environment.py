"""Environment variables that code names, besides the settings of the processes."""

import re

from tests.surface.literals import Literal, names_in_packages
from tests.surface.recorded import assert_recorded

_VARIABLE = re.compile(
    "(?:PILOTLIGHT|AWS|AZURE|CUDA|GOOGLE|HF|KUBERNETES|MODELSCOPE|OTEL|S3|STORAGE)(?:_[A-Z0-9]+)+"
    "|[A-Z]+_(?:PROXY|NUM_THREADS|PARALLELISM|BUNDLE|CERT_FILE|ENV|DIR)"
    "|CA_BUNDLE(?:_[A-Z]+)+|LC_ALL|PATH|HOME|TMPDIR|CI"
)


def _names(literal: Literal) -> list[str]:
    return [literal.text] if _VARIABLE.fullmatch(literal.text) else []


def test_environment_variables_are_as_recorded() -> None:
    assert_recorded("environment", names_in_packages(_names))
