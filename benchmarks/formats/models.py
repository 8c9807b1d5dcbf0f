"""Trains iris for a server: a pickle for those that read pickles, a skops file, a booster.

`python benchmarks/formats/models.py KIND FOLDER`, by the interpreter of the server that will read
it: pickles are read by the version of scikit-learn that wrote them. Imports no module of ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

TREES = 100


def make_pickle(path: Path) -> None:
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    joblib.dump(LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True)), path)


def make_skops(path: Path) -> None:
    import skops.io
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    skops.io.dump(LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True)), path)


def make_booster(path: Path) -> None:
    """100 rounds of one tree per class."""
    import xgboost
    from sklearn.datasets import load_iris

    features, classes = load_iris(return_X_y=True)
    parameters = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "nthread": 1}
    xgboost.train(parameters, xgboost.DMatrix(features, label=classes), TREES).save_model(path)


MAKERS = {"pickle": make_pickle, "skops": make_skops, "booster": make_booster}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]))
