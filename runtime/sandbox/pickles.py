"""`python -m runtime.sandbox.pickles MEMORY_BYTES`: a namespace's estimators of scikit-learn.

Standard input is a socket to the pod. The process confines itself before it reads a file, and
runs only while the pod waits for an answer of it.
"""

from __future__ import annotations

import io
import os
import re
import resource
import socket
import sys
import sysconfig
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

from common.confinement import ConfinementMissing, confine
from common.frames import frame, parent_socket, received
from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import V2Request, decode_request, encode_response
from runtime.engines.libraries.rows import SklearnModel, import_library, one_line
from runtime.errors import InferenceFailed, ModelInvalid
from runtime.sandbox import HEADER_LENGTH

_SYSTEM: Final = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/proc/cpuinfo", "/proc/meminfo",
    "/proc/self/maps", "/sys/devices/system/cpu", "/dev/urandom", "/dev/null",
)  # fmt: skip
_OF_THE_SCRIPT: Final = re.compile(
    r"Can't get attribute '(.+?)' on <module '(?:__main__|runtime\.sandbox\.\w+)'"
)
"""What pickle says of a name in the program that wrote the file: it looks in the one that reads."""


def readable_libraries() -> list[Path]:
    """What Python reads when it imports."""
    packages = [Path(__file__).parents[2] / name for name in ("runtime", "registry", "common")]
    paths = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *_SYSTEM]
    return [*packages, *(Path(path) for path in dict.fromkeys(paths))]


def unpickled(source: BinaryIO) -> Any:
    """The object in the file; raises ModelInvalid if what it was made of is not here."""
    sklearn = import_module("sklearn")
    inconsistent = import_module("sklearn.exceptions").InconsistentVersionWarning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = import_module("joblib").load(source)
        except AttributeError as error:
            named = _OF_THE_SCRIPT.match(str(error))
            if named is None:
                raise
            raise ModelInvalid(
                f"the model needs {named[1]!r} of the script that trained it, which is not in the"
                " file: train it without, such as with functions of numpy or scikit-learn"
                " (FunctionTransformer(numpy.log1p)), which any Python has"
            ) from error
        except ModuleNotFoundError as error:
            raise ModelInvalid(
                f"the model needs the module {error.name!r}, which is not installed here: install"
                " its package, or train the model without it"
            ) from error
    for each in caught:
        if issubclass(each.category, inconsistent):
            version = getattr(each.message, "original_sklearn_version", "another version")
            raise ModelInvalid(
                f"the model was saved with scikit-learn {version}, this is {sklearn.__version__};"
                f" convert it where scikit-learn {version} is installed"
                " (skops.io.dump(model, 'model.skops')), or train it again"
            )
    return found


_MAX_DESCRIPTORS: Final = 64
_NICENESS: Final = 5
_LIBRARIES_BYTES: Final = 1024**3
"""Address space of scikit-learn, scipy and pandas with their threads, generously."""
_TRUSTED: Final = frozenset({"sklearn", "numpy", "scipy"})
"""Packages whose types and functions a file of skops may name."""
_IMPORTS: Final = ("joblib", "sklearn", "sklearn.exceptions")


def main() -> int:
    """Say whether the process is confined, then answer until the pod closes the socket."""
    with parent_socket() as connection:
        try:
            _limit(int(sys.argv[1]))  # before the imports, which start threads
            for module in _IMPORTS:
                import_module(module)
        except (ConfinementMissing, ImportError) as error:
            connection.sendall(frame({"error": str(error)}))
            return 1
        connection.sendall(frame({"ready": True}))
        _serve(connection)
    return 0


def _limit(memory_bytes: int) -> None:
    """`memory_bytes`: on top of what the libraries may take."""
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_DESCRIPTORS, _MAX_DESCRIPTORS))
    confine(
        readable=readable_libraries(), writable=[], memory_bytes=_LIBRARIES_BYTES + memory_bytes
    )


def _serve(connection: socket.socket) -> None:
    models: dict[int, SklearnModel] = {}
    for head, body in received(connection):
        connection.sendall(frame(*_answer(models, head, body)))


def _answer(
    models: dict[int, SklearnModel], head: dict[str, Any], body: bytes
) -> tuple[dict[str, Any], bytes]:
    """Head and body of the response; the key of an error says whose mistake it is."""
    try:
        match head["operation"]:
            case "load":
                models[head["number"]] = _model(
                    _of_skops(body) if head["is_skops"] else unpickled(io.BytesIO(body)),
                    bool(head["wants_probabilities"]),
                )
            case "unload":
                models.pop(head["number"], None)
            case _:
                return _infer(models[head["number"]], body, head[HEADER_LENGTH])
    except InvalidRequest as error:
        return {"refused": str(error)}, b""
    except ModelInvalid as error:
        return {"invalid": str(error)}, b""
    except InferenceFailed as error:
        return {"failed": str(error)}, b""
    except MemoryError:
        return {"failed": "it needs more memory than a process of scikit-learn may have"}, b""
    except BaseException as error:  # the code of a pickle may raise anything
        return {"failed": f"{type(error).__name__}: {_text(error)}"}, b""
    return {}, b""


def _of_skops(content: bytes) -> Any:
    """The estimator; skops itself refuses a file that names anything else, by its name."""
    skops = import_library("skops.io", "sklearn")
    named = skops.get_untrusted_types(data=content)
    trusted = [name for name in named if name.partition(".")[0] in _TRUSTED]
    return skops.loads(content, trusted=trusted)


def _model(estimator: Any, wants_probabilities: bool) -> SklearnModel:
    if type(estimator).__name__ == "Booster":  # it takes no rows, but matrices of its library
        raise ModelInvalid(
            "the file holds a Booster, whose own format is served without a pickle: save it with"
            " save_model, and declare modelFormat xgboost or lightgbm"
        )
    return SklearnModel(estimator, wants_probabilities=wants_probabilities)


def _text(error: BaseException) -> str:
    try:
        return one_line(error)
    except BaseException:  # its own __str__ is the pickle's code, too
        return "an error without a text"


def _infer(model: SklearnModel, body: bytes, header_length: str) -> tuple[dict[str, Any], bytes]:
    request = decode_request(body, header_length)
    model.check(request.inputs)
    outputs = model.infer(request.inputs)
    encoded = encode_response(outputs, model_name="", request=V2Request((), is_binary=True))
    headers = dict(encoded.headers)
    return {HEADER_LENGTH: headers.get("inference-header-content-length")}, encoded.content


if __name__ == "__main__":
    sys.exit(main())
