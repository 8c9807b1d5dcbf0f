"""CPU time of the load of an ONNX forest in a pod's engine, beside onnxruntime alone."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch

from benchmarks.marks import Mark
from runtime.device.memory import CpuMemory
from runtime.engines.building import engine_of
from runtime.engines.engine import ModelFolder
from runtime.tasks.processors import load_processor
from runtime.weights.weight_source import DiskWeights

ROWS, FEATURES, CLASSES = 4000, 20, 3
WANTED_RATIO = 2.0


@dataclass(frozen=True)
class Forest:
    trees: int
    file_bytes: int
    load_s: list[float]
    """CPU seconds from the file to a model that has inferred once."""
    library_s: list[float]

    @property
    def ratio(self) -> float:
        return median(self.load_s) / median(self.library_s)


def measure(*, trees: int, repeats: int, seed: int) -> Forest:
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        _make(path, trees, seed)
        pairs = [
            (_cpu_s(lambda: _load(path)), _cpu_s(lambda: onnxruntime.InferenceSession(path)))
            for _ in range(repeats)
        ]
        load_s, library_s = ([pair[side] for pair in pairs] for side in (0, 1))
        return Forest(trees, path.stat().st_size, load_s, library_s)


def _make(path: Path, trees: int, seed: int) -> None:
    """As skl2onnx writes a classifier of scikit-learn."""
    import skl2onnx
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    rows, classes = make_classification(
        ROWS, FEATURES, n_informative=10, n_classes=CLASSES, random_state=seed
    )
    forest = RandomForestClassifier(trees, min_samples_leaf=8, random_state=seed)
    model = skl2onnx.to_onnx(
        forest.fit(rows, classes), rows[:1].astype(np.float32), options={"zipmap": False}
    )
    path.write_bytes(model.SerializeToString())


def _load(path: Path) -> None:
    source = DiskWeights([path])
    try:
        weights = CpuMemory().put(source)
    finally:
        source.close()
    processor = load_processor(path.parent, None)
    model = ModelFolder(path.parent, None, source.layout.tensors)
    device = torch.device("cpu")
    skeleton = engine_of(path.parent).build_skeleton(model, key="", device=device, threads=1)
    skeleton.attach(weights.tensors)
    processor.warm_up(skeleton.network)


def _cpu_s(work: Callable[[], object]) -> float:
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s


def summary(forest: Forest) -> str:
    return (
        f"{forest.trees} trees in {forest.file_bytes / 1e6:.1f} MB (ONNX), medians of"
        f" {len(forest.load_s)}: {median(forest.load_s):.2f} CPU s from the file to the first"
        f" inference, onnxruntime alone {median(forest.library_s):.2f}"
    )


def marks(forest: Forest) -> Iterator[Mark]:
    yield Mark(
        f"a load takes at most {WANTED_RATIO:g} times onnxruntime's own",
        f"{forest.ratio:.2f}",
        forest.ratio <= WANTED_RATIO,
    )
