"""Models in GGUF files, run by llama.cpp's server where PILOTLIGHT_LLAMA_SERVER names it."""

import os
import shutil
import signal
import struct
from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec, Task, TaskOptions
from runtime.engines.engine_adapter import EngineStart
from runtime.engines.llama_cpp_adapter import LlamaCppAdapter, read_fields, token_bytes
from runtime.engines.server_process import session_bytes
from runtime.errors import ModelInvalid
from runtime.storage.listing import library_files
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, predict
from tests.runtime.llama_cpp.gguf_model import write_gguf


@pytest.fixture(scope="module")
def llama_server() -> str:
    path = os.environ.get("PILOTLIGHT_LLAMA_SERVER", "")
    if shutil.which(path) is None:
        pytest.skip("PILOTLIGHT_LLAMA_SERVER names no llama-server of llama.cpp")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf")


@pytest.fixture(scope="module")
def pod(llama_server: str, shared_cluster: Cluster) -> servers.Pod:
    return shared_cluster.pod(llama_server=llama_server, memory_bytes=2 << 30)


def _start(model: Path, **fields: object) -> EngineStart:
    spec = ModelSpec(ModelName("default", "m"), "s3://m/m", **fields)  # type: ignore[arg-type]
    return EngineStart(
        spec, model.parent, model.parent, 1 << 20, None, threads=1, can_sleep=False, lora=False
    )


def _value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_the_cache_of_a_server_is_within_its_bytes(model: Path) -> None:
    """Of a token: two layers, keys and values of 64 numbers, 2 bytes each."""
    assert token_bytes(read_fields(model)) == 2 * 2 * 64 * 2
    found = LlamaCppAdapter("llama-server").arguments(_start(model), "/s.sock")
    assert (_value(found, "--ctx-size"), _value(found, "--parallel")) == ("2048", "4")
    assert _value(found, "--alias") == "m"
    limited = _start(model, options=TaskOptions(max_tokens=200), engine_args=("--max-num-seqs=3",))
    found = LlamaCppAdapter("llama-server").arguments(limited, "/s.sock")
    assert (_value(found, "--ctx-size"), _value(found, "--parallel")) == ("600", "3")


def test_arguments_of_another_engine_are_refused(model: Path) -> None:
    start = _start(model, engine_args=("--quantization=awq",))
    with pytest.raises(ModelInvalid, match="--quantization=awq"):
        LlamaCppAdapter("llama-server").arguments(start, "/s.sock")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"GGUX" + b"\0" * 64, id="another-format"),
        pytest.param(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), id="endless-name"),
        pytest.param(
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 9, 1 << 60),
            id="endless-list",
        ),
    ],
)
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelInvalid, match="cannot be read as GGUF"):
        read_fields(path)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param(["config.json", "m.Q4_K_M.gguf"], ["m.Q4_K_M.gguf"], id="beside-a-config"),
        pytest.param(
            ["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"],
            ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"],
            id="parts",
        ),
        pytest.param(
            ["m.gguf", "mmproj-m.gguf"], ["m.gguf", "mmproj-m.gguf"], id="with-a-projector"
        ),
        pytest.param(["config.json", "m.gguf", "model.safetensors"], [], id="beside-weights"),
    ],
)
def test_the_files_of_a_model(files: list[str], found: list[str]) -> None:
    assert list(library_files(files, "s3://m")) == found


def test_one_of_several_quantisations_must_be_chosen() -> None:
    with pytest.raises(ModelInvalid, match="several models"):
        library_files(["m.Q4_K_M.gguf", "m.Q8_0.gguf"], "s3://m")


def test_a_pod_without_a_server_says_so(cluster: Cluster, model: Path) -> None:
    pod = cluster.pod("pod-b")
    cluster.declare("writer", model.parent)
    found = post(f"{pod.url}/openai/v1/completions", {"model": "writer", "prompt": "the river"})
    assert (found.status_code, "--llama-server" in found.text) == (501, True), found.text


def _ask(pod: servers.Pod, **fields: object) -> dict[str, object]:
    body = {"model": "writer", "prompt": "the river", "max_tokens": 2, "temperature": 0, **fields}
    found = post(f"{pod.url}/openai/v1/completions", body)
    assert found.status_code == 200, found.text
    document: dict[str, object] = found.json()
    return {**document, "start": found.headers["x-pilotlight-start"]}


def test_a_gguf_file_is_served(llama_server: str, cluster: Cluster, model: Path) -> None:
    """Also after it was unloaded, and after its server was killed: it starts again."""
    pod = cluster.pod("pod-b", llama_server=llama_server, memory_bytes=2 << 30)
    spec = cluster.declare("writer", model.parent)
    first = _ask(pod)
    assert first["model"] == "writer"
    body = {"model": "writer", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    streamed = post(f"{pod.url}/openai/v1/chat/completions", {**body, "stream": True})
    assert streamed.text.rstrip().endswith("data: [DONE]"), streamed.text
    (text,) = predict(pod.url, "writer", "the river").json()["predictions"]
    assert isinstance(text, str)
    assert text
    unload = f"{pod.url}/v2/repository/models/default~writer/unload"
    assert post(unload).status_code == 200
    servers.wait_until(lambda: cluster.tiers(spec) == {"pod-b": "disk"})
    again = _ask(pod)
    assert (again["start"], again["choices"]) == ("disk", first["choices"])
    os.kill(_server_of(pod), signal.SIGKILL)
    assert _ask(pod)["choices"] == first["choices"]
    left = _server_of(pod)
    os.kill(pod.pid, signal.SIGKILL)
    servers.wait_until(lambda: not Path(f"/proc/{left}").exists())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"tools": True}, "Failed to parse tools", id="tools"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "image input is not supported",
            id="image",
        ),
    ],
)
def test_what_a_server_cannot_take_is_the_clients_error(
    pod: servers.Pod, shared_cluster: Cluster, model: Path, fields: dict[str, object], words: str
) -> None:
    shared_cluster.declare("writer", model.parent)
    body = {"model": "writer", "messages": [{"role": "user", "content": "x"}], **fields}
    found = post(f"{pod.url}/openai/v1/chat/completions", body)
    assert (found.status_code, words in found.text) == (400, True), found.text


def test_a_model_that_embeds_embeds_long_texts_and_nothing_else(
    pod: servers.Pod, shared_cluster: Cluster, model: Path
) -> None:
    """Of a server that embeds, llama.cpp's completions end the process without a pooling type."""
    name = ModelName("default", "embedder")
    spec = ModelSpec(name, model.parent.as_uri(), task=Task.TEXT_EMBEDDING)
    shared_cluster.do(lambda registry: registry.put_models([spec]))
    embeddings = f"{pod.url}/openai/v1/embeddings"
    found = post(embeddings, {"model": "embedder", "input": "x" * 900})
    assert found.status_code == 200, found.text
    too_long = post(embeddings, {"model": "embedder", "input": "x" * 1100})
    assert (too_long.status_code, "too large" in too_long.text) == (400, True), too_long.text
    wrong = post(f"{pod.url}/openai/v1/completions", {"model": "embedder", "prompt": "x"})
    assert (wrong.status_code, "embeds texts" in wrong.text) == (400, True), wrong.text
    assert predict(pod.url, "embedder", "x").status_code == 400


def test_prompts_of_the_past_take_no_memory(
    pod: servers.Pod, shared_cluster: Cluster, tmp_path: Path
) -> None:
    """Forty of 900 tokens would have 184 MB of keys and values."""
    shared_cluster.declare("deep", write_gguf(tmp_path / "deep.gguf", layers=20).parent)
    _ask(pod, model="deep", prompt="a" * 900)
    server = _server_of(pod, "deep")
    before = session_bytes(server)
    for number in range(40):
        _ask(pod, model="deep", prompt=f"{number:02}" * 450)
    assert session_bytes(server) - before < 64 << 20


def _server_of(pod: servers.Pod, name: str = "writer") -> int:
    """The one process of llama.cpp below the pod's launcher."""
    (found,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if f"\0--alias\0{name}\0".encode() in path.read_bytes()
        and _has_ancestor(int(path.parent.name), pod.pid)
    ]
    return found


def _has_ancestor(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False
        pid = next(int(line.split()[1]) for line in status.splitlines() if line[:5] == "PPid:")
    return False


def test_a_broken_file_is_answered_with_the_reason(
    llama_server: str, cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    content = model.read_bytes()
    (tmp_path / "model.gguf").write_bytes(content[: len(content) // 2])
    pod = cluster.pod("pod-b", llama_server=llama_server, memory_bytes=2 << 30)
    cluster.declare("writer", tmp_path)
    found = post(f"{pod.url}/openai/v1/completions", {"model": "writer", "prompt": "the river"})
    assert (found.status_code, "file bounds" in found.text) == (503, True), found.text
