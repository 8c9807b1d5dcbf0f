"""Expected failures of command line and platform, which `cli` maps to exit statuses; signals."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any, Final


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


def check_extra(extra: str, package: str) -> None:
    """Raises PilotlightError if a package that processes of a verb import is not installed."""
    with requires_extra(extra):
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_first_signal(handle: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` with the number of the first signal; a second one has its previous effect."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def on_signal(number: int, _: FrameType | None) -> None:
        restore()
        handle(number)

    for each in _SIGNALS:
        signal.signal(each, on_signal)
    try:
        yield
    finally:
        restore()


@asynccontextmanager
async def cancelled_by_signals() -> AsyncIterator[None]:
    """Cancels the body at the first SIGINT, SIGTERM or SIGHUP, and ignores later ones.

    Raises:
        Interrupted: after the body has cleaned up.
    """
    body = asyncio.current_task()
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if body is not None and len(received) == 1:
            body.cancel()

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGHUP)}
    for number in before:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    except asyncio.CancelledError:
        if not received or body is None:
            raise
        body.uncancel()
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    if received:
        raise Interrupted(received[0])
