"""What can go wrong on the command line and in the platform; `cli` maps each to an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class PilotlightError(Exception):
    """Root: an expected failure. Its text tells the user what to do; no traceback is shown."""

    kept: Mapping[str, Any] | None = None
    """What was done before it failed and is not undone, as `--json` tells it; None: nothing."""


class InvalidInput(PilotlightError):
    """What the user gave is wrong; `problems` holds every mistake, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class MissingExtra(PilotlightError):
    """A package is not installed that comes with one of our extras."""

    def __init__(self, missing: ModuleNotFoundError, extra: str) -> None:
        package = (missing.name or "a package").partition(".")[0]
        super().__init__(
            f"{package} is not installed; it comes with `pip install 'pilotlight[{extra}]'`"
        )


class AlreadyRunning(PilotlightError):
    """A platform holds this home folder."""


class NotRunning(PilotlightError):
    """No platform holds this home folder, and no address was given."""


class StartFailed(PilotlightError):
    """A part of the platform did not come up."""


class RequestFailed(PilotlightError):
    """The gateway, the registry or a pod refused what was asked."""


class NotFound(RequestFailed):
    """There is no such model or request."""


class ExpectationFailed(PilotlightError):
    """The demo ran, and something it promises did not show."""


class Interrupted(PilotlightError):
    """A signal ended it before it was done; everything was stopped in order."""

    def __init__(self, signal_number: int) -> None:
        super().__init__("interrupted")
        self.signal_number = signal_number
