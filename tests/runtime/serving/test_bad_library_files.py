"""A pod with sound models of each format beside bad files and bad rows: those alone are refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, predict
from tests.tabular_models import MAKERS

pytestmark = pytest.mark.slow

ROWS = [[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]]
FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "flipped": lambda content: content[:20] + bytes(255 - each for each in content[20:]),
    "swapped": lambda content: b"tree\nversion=v4\n" if content[:4] != b"tree" else b"PK\x03\x04",
}


@dataclass(frozen=True)
class Served:
    pod: servers.Pod

    def assert_sound(self) -> None:
        """Every sound model answers, warm: none was evicted or broken."""
        for name in MAKERS:
            answer = predict(self.pod.url, name, *ROWS)
            assert (answer.status_code, answer.headers["x-pilotlight-start"]) == (200, "warm")


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Served:
    for name, make in MAKERS.items():
        folder = make(tmp_path_factory.mktemp(name))
        shared_cluster.declare(name, folder)
        (path,) = folder.iterdir()
        for fault, change in FAULTS.items():
            bad = tmp_path_factory.mktemp(f"{name}-{fault}")
            (bad / path.name).write_bytes(change(path.read_bytes()))
            shared_cluster.declare(f"{name}-{fault}", bad)
    pod = shared_cluster.pod(slots=4)
    for name in MAKERS:
        assert predict(pod.url, name, *ROWS).status_code == 200
    return Served(pod)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_bad_file_is_a_clear_failure_of_its_model_alone(
    name: str, fault: str, served: Served
) -> None:
    answer = predict(served.pod.url, f"{name}-{fault}", *ROWS)
    assert answer.status_code == 422
    assert answer.json()["error"]
    assert "unexpected error" not in answer.json()["error"]
    served.assert_sound()


@pytest.mark.parametrize(
    "instances",
    [
        pytest.param([[1.0, 2.0, 3.0]], id="too few features"),
        pytest.param([[1.0] * 5], id="too many features"),
        pytest.param([["a", "b", "c", "d"]], id="texts for numbers"),
        pytest.param([{"a": 1.0}], id="missing columns"),
        pytest.param([{str(number): 1.0 for number in range(5)}], id="extra columns"),
        pytest.param([{"a": {"0": 1.0}, "b": {"0": 2.0}}], id="a data frame by index"),
        pytest.param([{"columns": ["a"], "data": [[1.0]]}], id="a data frame, split"),
        pytest.param([[[[[1.0]]]]], id="nested"),
    ],
)
@pytest.mark.parametrize("name", MAKERS)
def test_bad_rows_are_bad_requests(name: str, instances: list[Any], served: Served) -> None:
    answer = post(f"{served.pod.url}/v1/models/{name}:predict", {"instances": instances})
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_sound_models_are_warm_after_all_of_that(served: Served) -> None:
    served.assert_sound()
    assert "failed with an unexpected error" not in served.pod.log
