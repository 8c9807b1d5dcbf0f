"""Expected failures of the command line and the platform; `cli` maps each to an exit status."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


class PilotlightError(Exception):
    """Root. The message tells the user what to do; no traceback is printed."""

    partial_result: Mapping[str, Any] | None = None
    """What was completed before the failure and stays, as `--json` prints it; None: nothing."""


class InvalidInput(PilotlightError):
    """The user's input is wrong; `problems` holds every mistake, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class AlreadyRunning(PilotlightError):
    """Another platform holds the lock of this state directory."""


class NotRunning(PilotlightError):
    """No platform runs in this state directory, and no address was given."""


class StartFailed(PilotlightError):
    """A part of the platform did not start."""


class RequestFailed(PilotlightError):
    """The gateway, the registry or a pod did not carry out a request."""


class NotFound(RequestFailed):
    """The model, pod or request does not exist."""


class Interrupted(PilotlightError):
    """A signal ended the command; everything that it had started is stopped."""

    def __init__(self, signal_number: int) -> None:
        super().__init__("interrupted")
        self.signal_number = signal_number


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Wraps the imports of a verb; raises PilotlightError if a package is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise PilotlightError(
            f"{package} is not installed; it comes with `pip install 'pilotlight[{extra}]'`"
        ) from error
