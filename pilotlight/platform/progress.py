"""Progress of a platform that starts: a bar until it is ready, later steps as lines."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilotlight.output import progress_bar

if TYPE_CHECKING:
    from pilotlight.output import Output


@dataclass(frozen=True, slots=True)
class StartProgress:
    """Steps done and in total, and what the present step does."""

    done: int
    total: int
    text: str


class ProgressReporter:
    """Prints progress on standard error; `close_bar` ends the bar when the platform is ready."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._bar = ExitStack()
        self._update = self._bar.enter_context(progress_bar("platform"))
        self._is_bar_open = True
        self.is_quiet = False
        """Whether steps after the start are left out."""

    def on_progress(self, step: StartProgress) -> None:
        if self._is_bar_open:
            self._update(step.done, step.total, step.text)
        elif not self.is_quiet:
            self._output.note(step.text)

    def close_bar(self) -> None:
        """Idempotent."""
        self._is_bar_open = False
        self._bar.close()
