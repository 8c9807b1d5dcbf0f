"""The threads that decode, preprocess and postprocess requests, and whether all of them hang."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class RequestThreads(ThreadPoolExecutor):
    """Knows how long each call has run: no thread can be ended, but a pod can."""

    def __init__(self, threads: int, timeout_s: float) -> None:
        """`timeout_s`: time after which a call counts as hung."""
        super().__init__(threads, "request")
        self._threads_total = threads
        self._timeout_s = timeout_s
        self._begun_s: dict[int, float] = {}
        """By thread, for the calls that run; each thread changes its own entry only."""

    def submit(
        self,
        function: Callable[Arguments, Result],
        /,
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Future[Result]:
        return super().submit(self._run, function, *arguments, **named)

    def _run(
        self,
        function: Callable[Arguments, Result],
        /,
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        thread = threading.get_ident()
        self._begun_s[thread] = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            del self._begun_s[thread]

    @property
    def are_stuck(self) -> bool:
        """Whether every thread is in a call that hangs, so that no request can be served."""
        begun_s = list(self._begun_s.values())
        if len(begun_s) < self._threads_total:
            return False
        return time.monotonic() - max(begun_s) > self._timeout_s
