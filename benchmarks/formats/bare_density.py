"""onnxruntime alone, with many models: `python -m benchmarks.formats.bare_density FOLDER …`.

Prints `{"bytes": …, "cpu_ms": …}` per model, with the options of the pod's sessions.
"""

import os
import sys
import time

import numpy as np
import onnxruntime
import orjson

from benchmarks.formats.density import WIDTH, private_bytes
from runtime.engines.libraries.onnx_engine import CPU_PROVIDER, session_options


def main(folders: list[str]) -> None:
    row = np.ones((1, WIDTH), np.float32)
    kept = [_load(folders[0], row)]
    before, begun_s = private_bytes(os.getpid()), time.process_time()
    kept += [_load(each, row) for each in folders[1:]]
    count = max(1, len(folders) - 1)
    grown, spent_s = private_bytes(os.getpid()) - before, time.process_time() - begun_s
    sys.stdout.buffer.write(
        orjson.dumps({"bytes": grown / count, "cpu_ms": 1000 * spent_s / count})
    )


def _load(folder: str, row: object) -> object:
    """A session that has inferred once."""
    options = session_options(onnxruntime, threads=1)
    session = onnxruntime.InferenceSession(
        f"{folder}/model.onnx", options, providers=[CPU_PROVIDER]
    )
    session.run(None, {"x": row})
    return session


if __name__ == "__main__":
    main(sys.argv[1:])
