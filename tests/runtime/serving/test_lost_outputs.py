"""A pod says which tensors of a run it keeps."""

from pathlib import Path

import pytest
import torch

from tests.runtime import archives
from tests.runtime.conftest import Cluster
from tests.runtime.http import get
from tests.runtime.serving.test_kept_outputs import Doubled
from tests.runtime.serving.test_step_tensors import features, infer, reference_of


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    rows, example = torch.export.Dim("rows", max=65536), torch.ones(2, 4)
    archives.export(Doubled(), folder / "double" / "model.pt2", example, dynamic=({0: rows},))
    return folder


def test_a_pod_says_which_tensors_of_a_run_it_keeps(cluster: Cluster, programs: Path) -> None:
    cluster.declare("double", programs / "double")
    pod = cluster.pod("pod-a")
    names = [reference_of(infer(pod, features()))["parameters"]["kept_tensor"] for _ in range(2)]
    asked = "&".join(f"identity={each}" for each in (*names, "0" * 32))
    for path, kept in (("default/run-1", names), ("default/run-2", []), ("other/run-1", [])):
        assert get(f"{pod.url}/v2/tensors/{path}?{asked}").json() == {"kept": kept}
    assert get(f"{pod.url}/v2/tensors/default/run-1").json() == {"kept": []}
