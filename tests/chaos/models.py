"""Small exported programs whose outputs tell the model and the request: no two rows agree."""

import warnings
from pathlib import Path

import torch

FEATURES = 4
BALLAST = 1_000_000
"""Weights that the result does not depend on: 4 MB, so that loads and evictions take a moment."""
BUCKET = "chaos"
MODEL = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations: {{pilotlight.io/policy: {policy}}}
spec:
  predictor:
    model:
      modelFormat: {{name: pytorch}}
      storageUri: s3://{bucket}/{name}
"""
POLICIES = ("auto", "auto", "colocation-queueing", "least-loaded", "remote-proxy", "colocation")
"""The policy of the n-th model, in turn."""


class _Marked(torch.nn.Module):
    """Multiplies each feature by one and adds the model's number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.tensor(float(number)))
        self.ballast = torch.nn.Parameter(torch.zeros(BALLAST))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features + self.number + self.ballast[:1]


def model_name(number: int) -> str:
    return f"chaos-{number}"


def expected(number: int, request: int) -> list[float]:
    """The output of model `number` for `features(request)`."""
    return [each + number for each in features(request)]


def features(request: int) -> list[float]:
    """One row: small whole numbers, which 32-bit floats add exactly."""
    return [float(request % 4096), float(request // 4096 % 4096), 1.0, 2.0]


def write_models(objects: Path, count: int) -> None:
    """Write `count` models into the bucket that the object store serves."""
    rows = torch.export.Dim("rows", min=1, max=64)
    for number in range(count):
        folder = objects / BUCKET / model_name(number)
        folder.mkdir(parents=True)
        with warnings.catch_warnings():  # deprecations inside torch
            warnings.simplefilter("ignore")
            program = torch.export.export(
                _Marked(number), (torch.zeros(2, FEATURES),), dynamic_shapes=({0: rows},)
            )
            torch.export.save(program, folder / "model.pt2")


def declaration(numbers: range) -> str:
    """YAML of these models."""
    return "---".join(
        MODEL.format(name=model_name(each), bucket=BUCKET, policy=POLICIES[each % len(POLICIES)])
        for each in numbers
    )
