"""Liu 2025, section 6.5, equations 1 to 3, as printed: the time of a request by policy.

Kept beside the forecasts that `auto` uses (`gateway/routing/latency_model.py`), which extend them;
experiment liu-wins compares both. Seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Factors:
    """The thesis's symbols. The averages are of requests under way to the same model."""

    load_s: float
    """T_CS."""
    infer_s: float
    """T_I, and its average."""
    around_s: float
    """T_P: pre- and postprocessing, and its average."""
    network_s: float
    """T_N."""
    ongoing: int
    """n: the most requests under way at any warm pod."""


def colocation_s(factors: Factors) -> float:
    """Equation 1: max(T_CS + T_I + T_P, n (T_I,avg + T_P,avg))."""
    alone_s = factors.infer_s + factors.around_s
    return max(factors.load_s + alone_s, factors.ongoing * alone_s)


def colocation_queueing_s(factors: Factors) -> float:
    """Equation 2: (n + 1) (T_I,avg + T_P,avg)."""
    return (factors.ongoing + 1) * (factors.infer_s + factors.around_s)


def registry_s(factors: Factors) -> float:
    """Equation 3: (T_N + T_I + T_P) + n T_I,avg."""
    own_s = factors.network_s + factors.infer_s + factors.around_s
    return own_s + factors.ongoing * factors.infer_s


PRINTED: Final[Mapping[str, Callable[[Factors], float]]] = {
    "colocation": colocation_s,
    "colocation-queueing": colocation_queueing_s,
    "remote-proxy": registry_s,
}
"""By our name of the policy; the thesis calls the last one centralized model registry."""
