"""Random windows for property tests."""

import random
from typing import Final

import numpy as np

from registry.domain.application import Penalty
from variants.planning.window import (
    VariantProfile,
    Window,
    WindowApplication,
    WindowRequest,
    Worker,
    profiled_accuracy,
    recalls,
)

CLASSES: Final = 3


def variant(name: str, confusion: list[list[float]]) -> VariantProfile:
    return VariantProfile(name, profiled_accuracy(confusion), tuple(recalls(confusion)))


def random_window(
    seed: int,
    *,
    requests: int,
    applications: int = 2,
    variants: int = 3,
    workers: int = 1,
    has_evidence: bool = False,
    penalty: Penalty | None = None,
) -> Window:
    rng = random.Random(seed)
    apps = []
    for at in range(applications):
        matrices = [_confusion(rng) for _ in range(variants)]
        matrices.sort(key=profiled_accuracy)
        apps.append(
            WindowApplication(
                f"app{at}",
                tuple(
                    variant(f"app{at}-{size}", matrix.tolist())
                    for size, matrix in enumerate(matrices)
                ),
                penalty or rng.choice(list(Penalty)),
                short_circuit_accuracy=rng.uniform(0.3, 0.7) if has_evidence else None,
            )
        )
    names = [each.name for app in apps for each in app.variants]
    return Window(
        tuple(_request(rng, at, applications, has_evidence) for at in range(requests)),
        tuple(apps),
        tuple(
            Worker(
                f"worker{at}",
                {name: rng.choice([0.005, 0.02, 0.06]) * rng.uniform(0.8, 1.2) for name in names},
                {name: rng.uniform(0.0, 0.05) for name in names},
                free_s=rng.choice([0.0, 0.12]),
            )
            for at in range(workers)
        ),
        now_s=0.1,
    )


def _confusion(rng: random.Random) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    matrix = np.array([[rng.random() for _ in range(CLASSES)] for _ in range(CLASSES)])
    return matrix + np.diag([rng.uniform(0.5, 4.0) for _ in range(CLASSES)])


def _request(rng: random.Random, at: int, applications: int, has_evidence: bool) -> WindowRequest:
    labels = [rng.randrange(CLASSES) for _ in range(5)]
    return WindowRequest(
        f"r{at}",
        f"app{rng.randrange(applications)}",
        rng.uniform(0.0, 0.1),
        max(rng.gauss(0.15, 0.03), 0.01),
        tuple(float(labels.count(each)) for each in range(CLASSES)) if has_evidence else None,
    )
