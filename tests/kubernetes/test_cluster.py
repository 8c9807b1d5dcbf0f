"""The cluster itself, on which all other tests depend."""

import pytest

from tests.kubernetes.kubectl import Kubectl

pytestmark = pytest.mark.kubernetes


def test_serves_kserves_kinds_and_calls_its_webhooks(admin: Kubectl) -> None:
    bad = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "bad", "namespace": "default"},
        "spec": {
            "predictor": {
                "containers": [
                    {"name": "kserve-container", "image": "x", "env": [{"name": "PYTHONPATH"}]}
                ]
            }
        },
    }
    answer = admin.try_apply([bad])
    assert not answer.is_ok
    assert "PYTHONPATH" in answer.errors
