"""Records every inference of a pod: Python imports this file where its folder is on `PYTHONPATH`.

`CHAOS_LEDGER` names the file. A line is `begin|end TIME PID REQUEST`, with the time of
`time.monotonic`, which all processes of a machine share; `end` follows an inference that gave
outputs. Nothing else of the pod changes.
"""

import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_RECORDED = "runtime.serving.predict_service"
_LEDGER = os.environ.get("CHAOS_LEDGER", "")


def _record(event: str, request_id: str) -> None:
    line = f"{event} {time.monotonic():.6f} {os.getpid()} {request_id}\n"
    os.write(_descriptor(os.getpid()), line.encode())


@cache
def _descriptor(pid: int) -> int:
    """Opened once by each process, so that one without descriptors records as before."""
    del pid
    return os.open(_LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class _RecordingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        service = module.PredictService
        infer, initialise = service._infer, service.__init__

        def opened(self: Any, *arguments: Any, **named: Any) -> None:
            _descriptor(os.getpid())
            initialise(self, *arguments, **named)

        async def recorded(self: Any, request: Any, *arguments: Any, **named: Any) -> Any:
            _record("begin", request.head.id)
            outputs = await infer(self, request, *arguments, **named)
            _record("end", request.head.id)
            return outputs

        service.__init__, service._infer = opened, recorded


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _RECORDED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RecordingLoader(spec.loader)
        return spec


if _LEDGER:
    sys.meta_path.insert(0, _Finder())
