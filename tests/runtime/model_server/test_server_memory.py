"""The memory of a model server, by metrics and by its processes."""

import subprocess
import sys

import pytest

from runtime.engines.server_process import ServerMemory, memory_of_metrics, session_bytes
from tests import servers

TRITON = """# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1000.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} 2e+03
nv_cpu_memory_used_bytes 9000
"""
HELD = 64 * 2**20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(TRITON, 3000, id="triton"),
        pytest.param("process_resident_memory_bytes 2.25959936e+08\n", 225_959_936, id="process"),
        pytest.param("process_resident_memory_bytes none\n", None, id="no-number"),
        pytest.param("<html></html>", None, id="no-metrics"),
    ],
)
def test_metrics_are_read(text: str, expected: int | None) -> None:
    assert memory_of_metrics(text) == expected


def test_metrics_that_do_not_answer_are_unknown() -> None:
    url = f"http://127.0.0.1:{servers.free_port()}"
    assert ServerMemory(f"{url}/metrics").used_bytes() is None


def test_memory_of_a_process_counts_its_children() -> None:
    child = f"held = bytearray({HELD}); print(flush=True); input()"
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]]);"
        " child.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = session_bytes(process.pid)
        process.communicate(b"\n")
    assert HELD < found < 3 * HELD
    assert session_bytes(process.pid) == 0
