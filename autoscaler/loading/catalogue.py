"""The loading policies by the name they have in settings, metrics and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autoscaler.loading.keep_alive import keep_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.planning.policy import LoadingPolicy

LOADING_POLICIES: Final[Mapping[str, Callable[[], LoadingPolicy[Any]]]] = {
    "keep-alive": keep_alive,
}
"""Each with its default parameters."""
