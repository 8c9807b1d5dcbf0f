"""Sleeps, unless its environment says that it cannot."""

import os


class _Platform:
    def is_sleep_mode_available(self) -> bool:
        return "SMALL_SLEEPLESS" not in os.environ


current_platform = _Platform()
