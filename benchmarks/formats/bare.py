"""The library alone: predictions of one row in a loop, by CPU time.

`python -m benchmarks.formats.bare KIND FILE` prints microseconds of CPU per prediction.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

ROW: Final = (6.8, 2.8, 4.8, 1.4)
_CPU_S: Final = 1.0


def predictor(kind: str, path: str) -> Callable[[], Any]:
    if kind == "booster":
        import xgboost

        booster = xgboost.Booster({"nthread": 1}, model_file=path)
        rows = np.asarray([ROW], np.float32)
        return lambda: booster.inplace_predict(rows, validate_features=False)
    if kind == "lightgbm":
        import lightgbm

        trees = lightgbm.Booster(model_file=path)
        row = np.asarray([ROW])
        return lambda: trees.predict(row, num_threads=1)
    if kind == "mobilenet":
        return _session(path)
    import skops.io

    model = skops.io.load(path)
    row = np.asarray([ROW])
    return lambda: model.predict(row)


def _session(path: str) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    size = session.get_inputs()[0].shape[1:]
    image = np.random.default_rng(0).random((1, *size), np.float32)
    return lambda: session.run(None, {"x": image})


def main(kind: str, path: str) -> None:
    predict = predictor(kind, path)
    for _ in range(20):
        predict()
    count, begun_s = 0, time.process_time()
    while (spent_s := time.process_time() - begun_s) < _CPU_S:
        predict()
        count += 1
    print(f"{spent_s / count * 1e6:.1f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
