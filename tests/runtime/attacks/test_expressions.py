"""Chat templates and tokenizers without end, or with endless memory: only their model suffers."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.sandbox.sandbox_processes import TIMEOUT_S
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric, post, predict

pytestmark = pytest.mark.slow

LOOPS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
MEMORY = "{{ 'a' * 10000000000 }}"


def chat(pod: servers.Pod, model: str, text: str = "hello") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return post(f"{pod.url}/openai/v1/chat/completions", body)


def edit_tokenizer(folder: Path, **parts: Any) -> Path:
    """Replace parts of tokenizer.json, and the class that would replace them by its own."""
    own_class = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, changes in (("tokenizer.json", parts), ("tokenizer_config.json", own_class)):
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        pytest.param(LOOPS, "did not end", id="loops"),
        pytest.param(MEMORY, "too much memory", id="memory"),
    ],
)
def test_a_template_over_its_limits_harms_its_model_alone(
    cluster: Cluster, models: Path, tmp_path: Path, template: str, cause: str
) -> None:
    folder = servers.copy_model(models / "tiny-gpt2", tmp_path / "bad")
    (folder / "chat_template.jinja").write_text(template)
    cluster.declare("bad", folder)
    cluster.declare("good", models / "tiny-gpt2")
    cluster.declare("embedder", models / "tiny-bert")
    pod = cluster.pod()
    assert chat(pod, "good").status_code == 200
    assert predict(pod.url, "embedder", "x").status_code == 200
    with ThreadPoolExecutor() as clients:
        attacks = [clients.submit(chat, pod, "bad") for _ in range(4)]
        while not all(each.done() for each in attacks):
            assert chat(pod, "good").status_code == 200
            assert predict(pod.url, "embedder", "x").status_code == 200
    refused = [each.result() for each in attacks]
    assert sorted(each.status_code for each in refused) == [400, 503, 503, 503]
    assert any(cause in each.text for each in refused), [each.text for each in refused]
    again = chat(pod, "bad")
    assert again.status_code == 503
    assert 200 < int(again.headers["retry-after"]) <= 300
    completion = {"model": "bad", "prompt": "x", "max_tokens": 1}
    assert post(f"{pod.url}/openai/v1/completions", completion).status_code == 200
    assert metric(pod.url, "pilotlight_expressions_total", outcome="refused") == 4


def test_a_pattern_that_backtracks_is_stopped(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    pattern = {
        "type": "Split",
        "pattern": {"Regex": "(x+x+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }
    folder = servers.copy_model(models / "tiny-bert", tmp_path / "bad")
    cluster.declare("bad", edit_tokenizer(folder, pre_tokenizer=pattern))
    cluster.declare("embedder", models / "tiny-bert")
    pod = cluster.pod()
    assert predict(pod.url, "bad", "some words").status_code == 200
    assert predict(pod.url, "embedder", "x").status_code == 200
    attack = ("x" * 21 + " ") * 3000  # each word below the library's own limit; all, minutes
    with ThreadPoolExecutor() as clients:
        attacks = [clients.submit(predict, pod.url, "bad", attack) for _ in range(4)]
        while not all(each.done() for each in attacks):
            assert predict(pod.url, "embedder", "x").status_code == 200
    assert sorted(each.result().status_code for each in attacks) == [400, 503, 503, 503]
    assert predict(pod.url, "bad", "some words").status_code == 200  # short texts go on
    assert predict(pod.url, "bad", attack[:20_000]).status_code == 503


def test_a_tokenizer_that_multiplies_texts_is_stopped(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    grow = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
    folder = servers.copy_model(models / "tiny-bert", tmp_path / "bad")
    steps = {"type": "Sequence", "normalizers": [grow] * 6}
    cluster.declare("bad", edit_tokenizer(folder, normalizer=steps))
    cluster.declare("embedder", models / "tiny-bert")
    pod = cluster.pod()
    stopped = predict(pod.url, "bad", "a")
    assert stopped.status_code == 400, stopped.text
    assert predict(pod.url, "embedder", "a").status_code == 200
    assert "INVALID" not in pod.log


def test_a_decoder_with_a_pattern_is_refused(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    decoder = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    folder = servers.copy_model(models / "tiny-gpt2", tmp_path / "bad")
    cluster.declare("bad", edit_tokenizer(folder, decoder=decoder))
    refused = chat(cluster.pod(), "bad")
    assert refused.status_code == 422
    assert "the pattern '(a+)+$' of the decoder" in refused.text


def test_a_killed_worker_is_replaced_at_once(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    folder = servers.copy_model(models / "tiny-gpt2", tmp_path / "bad")
    (folder / "chat_template.jinja").write_text(LOOPS)
    for name in ("bad", "worse"):
        cluster.declare(name, folder)
    cluster.declare("good", models / "tiny-gpt2")
    pod = cluster.pod()
    assert chat(pod, "good").status_code == 200
    with ThreadPoolExecutor() as clients:
        attacks = [clients.submit(chat, pod, name) for name in ("bad", "worse")]
        assert [each.result().status_code for each in attacks] == [400, 400]
    started_s = time.monotonic()
    assert chat(pod, "good").status_code == 200
    assert time.monotonic() - started_s < TIMEOUT_S
