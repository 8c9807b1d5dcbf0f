"""Pickles whose code does harm when they are read, or in an inference."""

import io
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.tabular_models import iris

joblib: Any = import_module("joblib")


class Calls:
    """Calls a function when it is read."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def hostile_model(predict: str) -> Calls:
    """An estimator whose `predict` is this code, which its file brings along."""
    code = (
        "import os, socket, sys, threading, time\n"
        "class Hostile:\n"
        "    n_features_in_ = 4\n"
        "    def predict(self, rows):\n"
        f"        {predict}\n"
        "made = Hostile()\n"
    )
    return Calls(eval, f"(exec({code!r}, found := {{}}), found['made'])[1]")


def logistic() -> Any:
    """A model of iris that does no harm."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=500).fit(*iris())


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    joblib.dump(content, file)
    return file.getvalue()
