"""Windows of requests for the demo applications, by seed; Wolfrath et al. 2025, section 6.1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from registry.domain.application import Penalty
from research.experiments.sneakpeek.demo_data import LATENCY_S, SWAP_S, DemoApplication
from variants.planning.window import (
    VariantProfile,
    Window,
    WindowApplication,
    WindowRequest,
    Worker,
)

_MIN_DEADLINE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Workload:
    """What windows look like; the defaults are the paper's."""

    requests: int = 12
    copies: int = 1
    """Of the three applications."""
    applications: int | None = None
    """The first of these copies; None: all."""
    window_s: float = 0.1
    deadline_s: float = 0.15
    deadline_sigma_s: float = 0.03
    penalty: Penalty = Penalty.SIGMOID
    scale: float = 1.0
    """Of latencies and swap times."""
    swap_scale: float = 1.0
    """Of swap times, beyond `scale`."""
    slowness: tuple[float, ...] = (1.0,)
    """Of each worker."""
    k: int = 5
    look_accuracy: float | None = None
    """Draw the evidence from a confusion matrix with this diagonal instead of looking."""
    variation: float | None = None
    """Three synthetic variants: the mean accuracy and latency, and both less and more by this."""


@dataclass(frozen=True, slots=True)
class RequestTruth:
    """What policies do not know of a request."""

    application: int
    """Index of the demo application."""
    copy: str
    """Suffix of its variants' names."""
    example: int
    label: int


@dataclass(frozen=True, slots=True)
class DrawnWindow:
    window: Window
    truth: dict[str, RequestTruth]
    """By request id."""


def draw_window(
    apps: Sequence[DemoApplication], load: Workload, rng: np.random.Generator
) -> DrawnWindow:
    """Requests in equal shares per application, at uniform times in the window."""
    copies = [f"+{copy}" if copy else "" for copy in range(load.copies)]
    owners = [(at, copy) for copy in copies for at in range(len(apps))][: load.applications]
    requests, truth = [], {}
    for at in range(load.requests):
        owner, copy = owners[at % len(owners)]
        app = apps[owner]
        label = int(rng.choice(len(app.mix), p=app.mix))
        example = int(rng.choice(app.examples_of(label)))
        evidence = app.evidence[load.k][example]
        if load.look_accuracy is not None:
            evidence = _drawn_evidence(load, len(app.mix), label, rng)
        deadline = max(float(rng.normal(load.deadline_s, load.deadline_sigma_s)), _MIN_DEADLINE_S)
        arrival = float(rng.uniform(0.0, load.window_s))
        requests.append(
            WindowRequest(f"{at:04d}", app.name + copy, arrival, deadline, tuple(evidence))
        )
        truth[f"{at:04d}"] = RequestTruth(owner, copy, example, label)
    owned = [(apps[at], copy, variants_of(apps[at], load)) for at, copy in owners]
    return DrawnWindow(
        Window(
            tuple(requests),
            tuple(_application(app, copy, variants, load) for app, copy, variants in owned),
            tuple(_worker(at, owned, load) for at in range(len(load.slowness))),
            load.window_s,
        ),
        truth,
    )


def variants_of(app: DemoApplication, load: Workload) -> tuple[VariantProfile, ...]:
    """The variants, or three synthetic ones with even recalls."""
    if load.variation is None:
        return app.variants
    mean = float(np.mean([each.accuracy for each in app.variants]))
    return tuple(
        VariantProfile(f"{app.name}-{size}", accuracy, (accuracy,) * len(app.mix))
        for size, accuracy in (
            ("less", mean * (1 - load.variation)),
            ("mean", mean),
            ("more", min(mean * (1 + load.variation), 1.0)),
        )
    )


def _application(
    app: DemoApplication, copy: str, variants: Sequence[VariantProfile], load: Workload
) -> WindowApplication:
    look = app.look[load.k].accuracy if load.look_accuracy is None else load.look_accuracy
    return WindowApplication(
        app.name + copy,
        tuple(VariantProfile(each.name + copy, each.accuracy, each.recalls) for each in variants),
        load.penalty,
        short_circuit_accuracy=look,
    )


def _worker(
    at: int,
    owned: Sequence[tuple[DemoApplication, str, tuple[VariantProfile, ...]]],
    load: Workload,
) -> Worker:
    latency, swap = {}, {}
    latencies: tuple[float, ...] = LATENCY_S
    swaps: tuple[float, ...] = SWAP_S
    if load.variation is not None:
        factors = (1 - load.variation, 1.0, 1 + load.variation)
        latencies = tuple(float(np.mean(LATENCY_S)) * each for each in factors)
        swaps = (float(np.mean(SWAP_S)),) * 3
    scale = load.scale * load.slowness[at]
    for _, copy, variants in owned:
        for each, latency_s, swap_s in zip(variants, latencies, swaps, strict=True):
            latency[each.name + copy] = latency_s * scale
            swap[each.name + copy] = swap_s * scale * load.swap_scale
    return Worker(f"worker{at}", latency, swap)


def _drawn_evidence(
    load: Workload, classes: int, label: int, rng: np.random.Generator
) -> list[float]:
    """K labels from the true label's row; errors are uniform over the other classes."""
    assert load.look_accuracy is not None
    row = np.full(classes, (1 - load.look_accuracy) / (classes - 1))
    row[label] = load.look_accuracy
    counts: list[float] = rng.multinomial(load.k, row).astype(float).tolist()
    return counts
