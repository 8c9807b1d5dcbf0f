"""The output files of simulations and experiments: which may be replaced, and their removal."""

from collections.abc import Sequence
from pathlib import Path

from load.errors import GeneratorError
from load.generator.records import require_replaceable
from pilotlight.errors import InvalidInput


def require_free(paths: Sequence[Path], inputs: Sequence[str] = (), *, overwrite: bool) -> None:
    """Raises InvalidInput if a path exists and may not be replaced, such as one of `inputs`."""
    for path in paths:
        try:
            require_replaceable(path, inputs, overwrite=overwrite, flag="--out")
        except GeneratorError as error:
            raise InvalidInput([str(error)]) from None
        except OSError as error:
            raise InvalidInput([f"--out: cannot write {path}: {error}"]) from error


def clear_outputs(paths: Sequence[Path]) -> None:
    """Make the folders of the files, and delete the files; raises InvalidInput."""
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InvalidInput(
                [f"--out: cannot write {path.parent}: it must be a folder, but it is a file"]
            ) from None
        except OSError as error:
            raise InvalidInput([f"--out: cannot write {path.parent}: {error}"]) from error
