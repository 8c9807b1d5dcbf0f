"""Text generation over OpenAI's protocol at a pod: responses, streams, batching, errors."""

import gzip
import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from _pytest.mark import ParameterSet
from transformers import AutoTokenizer

from common.pod_responses import parse_server_timing
from registry.domain.model import ModelPolicy
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, infer_texts, metric, post, post_bytes, predict, wait_idle

LONG = {"model": "chat", "prompt": ["zuzu"] * 8, "max_tokens": 900, "n": 16, "seed": 1}
"""A response that takes half a minute."""
LONG_TOKENS = 900 * 8 * 16


@pytest.fixture(scope="module")
def generating(shared_cluster: Cluster, models: Path) -> servers.Pod:
    """A pod with a generating model and one that embeds."""
    shared_cluster.declare("chat", models / "tiny-gpt2")
    shared_cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    shared_cluster.declare("broken", models / "nowhere")
    return shared_cluster.pod("pod-g", slots=8, max_body_bytes=400_000, generation_max_tokens=1000)


def complete(pod: servers.Pod, prompt: Any = "babe dida", **fields: Any) -> dict[str, Any]:
    body = {"model": "chat", "prompt": prompt, "temperature": 0, **fields}
    response = post(f"{pod.url}/openai/v1/completions", body)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def text_of(document: dict[str, Any]) -> str:
    text: str = document["choices"][0]["text"]
    return text


def events(pod: servers.Pod, call: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """All events of a stream but the last, which must be `[DONE]`."""
    url = f"{pod.url}/openai/v1/{call}"
    with httpx.stream("POST", url, json={**body, "stream": True}, trust_env=False, timeout=60) as s:
        lines = [line.removeprefix("data: ") for line in s.iter_lines() if line]
        assert s.status_code == 200, lines
        assert s.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_completes_with_usage_and_finish_reason(generating: servers.Pod) -> None:
    document = complete(generating, max_tokens=5)
    assert document["object"] == "text_completion"
    assert document["model"] == "chat"
    assert text_of(document)
    assert document["choices"][0]["finish_reason"] == "length"
    usage = document["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5


def test_default_length_is_that_of_openai(generating: servers.Pod) -> None:
    assert complete(generating)["usage"]["completion_tokens"] == 16


def test_the_time_of_generating_is_reported_as_inference(generating: servers.Pod) -> None:
    body = {"model": "chat", "prompt": "babe", "max_tokens": 50}
    began_s = time.monotonic()
    response = post(f"{generating.url}/openai/v1/completions", body)
    took_ms = (time.monotonic() - began_s) * 1000
    stages = parse_server_timing(response.headers["server-timing"])
    assert 1 < stages["infer"] <= took_ms  # fifty steps of the network


def test_chat_without_a_length_ends(generating: servers.Pod) -> None:
    messages = [{"role": "user", "content": "babe"}]
    body = {"model": "chat", "messages": messages, "ignore_eos": True}
    document = post(f"{generating.url}/openai/v1/chat/completions", body).json()
    assert document["usage"]["completion_tokens"] <= 512
    assert document["choices"][0]["finish_reason"] == "length"


def test_completes_a_conversation(generating: servers.Pod) -> None:
    parts = [{"type": "text", "text": "ba"}, {"type": "text", "text": "be"}]
    messages = [{"role": "system", "content": "dida"}, {"role": "user", "content": parts}]
    body = {"model": "chat", "messages": messages, "max_completion_tokens": 4, "seed": 3}
    document = post(f"{generating.url}/openai/v1/chat/completions", body).json()
    assert document["object"] == "chat.completion"
    choice = document["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert document["usage"]["completion_tokens"] == 4


def test_streamed_and_whole_responses_agree(generating: servers.Pod) -> None:
    body = {"model": "chat", "prompt": "babe dida", "temperature": 0, "max_tokens": 20}
    chunks = events(generating, "completions", body)
    streamed = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert streamed == text_of(complete(generating, max_tokens=20))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert len(chunks) > 5


def test_streamed_chat_begins_with_its_role_and_ends_with_usage(generating: servers.Pod) -> None:
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "babe"}],
        "max_tokens": 6,
        "seed": 3,
        "stream_options": {"include_usage": True},
    }
    first, *middle, last = events(generating, "chat/completions", body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["usage"] is None for chunk in (first, *middle))
    assert middle[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6


def test_each_of_several_prompts_has_its_choices(generating: servers.Pod, models: Path) -> None:
    prompts = ["babe dida", "zuzu", "wowo wuwu"]
    alone = [text_of(complete(generating, each, max_tokens=12)) for each in prompts]
    together = complete(generating, prompts, max_tokens=12, n=2)
    assert [each["index"] for each in together["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [each["text"] for each in together["choices"][::2]] == alone  # greedy: all choices equal
    counted = [complete(generating, each, max_tokens=12)["usage"] for each in prompts]
    usage = together["usage"]
    assert usage["prompt_tokens"] == sum(each["prompt_tokens"] for each in counted)
    assert usage["completion_tokens"] == 2 * sum(each["completion_tokens"] for each in counted)
    tokens = [[5, 6, 7], [8]]
    assert len(complete(generating, tokens, max_tokens=2)["choices"]) == 2


def test_accepts_prompt_tokens(generating: servers.Pod, models: Path) -> None:
    vocabulary = orjson.loads((models / "tiny-gpt2" / "tokenizer.json").read_bytes())
    ids = [vocabulary["model"]["vocab"][piece] for piece in ("ba", "be")]
    assert text_of(complete(generating, ids)) == text_of(complete(generating, "babe"))


def test_stop_string_ends_the_text_before_it(generating: servers.Pod) -> None:
    whole = text_of(complete(generating, max_tokens=30))
    stop = whole[10:13]
    document = complete(generating, max_tokens=30, stop=[stop])
    assert text_of(document) == whole[: whole.index(stop)]
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] < 30


def test_equal_seeds_repeat_and_others_differ(generating: servers.Pod) -> None:
    def draw(seed: int) -> str:
        return text_of(complete(generating, temperature=1, seed=seed, max_tokens=12))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_choices_differ_and_are_counted(generating: servers.Pod) -> None:
    document = complete(generating, n=3, temperature=1, seed=4, max_tokens=8)
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    assert len({choice["text"] for choice in document["choices"]}) == 3
    alone = complete(generating, temperature=1, seed=4, max_tokens=8)
    assert text_of(alone) == text_of(document)
    total = sum(
        complete(generating, temperature=1, seed=4 + index, max_tokens=8)["usage"][
            "completion_tokens"
        ]
        for index in range(3)
    )
    assert document["usage"]["completion_tokens"] == total


def test_penalty_reduces_repetition(generating: servers.Pod) -> None:
    plain = complete(generating, max_tokens=60)
    spread = complete(generating, max_tokens=60, frequency_penalty=2, presence_penalty=2)
    assert len(set(text_of(spread).split())) >= len(set(text_of(plain).split()))
    assert text_of(spread) != text_of(plain)


def test_models_end_token_ends_the_text(
    cluster: Cluster, models: Path, tmp_path: Path, generating: servers.Pod
) -> None:
    folder = servers.copy_model(models / "tiny-gpt2", tmp_path / "ending")
    generated = complete(generating, max_tokens=12)
    vocabulary = orjson.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
    ids = [
        token
        for piece, token in vocabulary.items()
        if piece[1:] and piece[1:] in text_of(generated)
    ]
    settings = orjson.loads((folder / "generation_config.json").read_bytes())
    settings["eos_token_id"] = ids
    (folder / "generation_config.json").write_bytes(orjson.dumps(settings))
    cluster.declare("chat", folder)
    document = complete(cluster.pod(), max_tokens=12)
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] < 12


def test_concurrent_requests_do_not_change_the_text(generating: servers.Pod) -> None:
    prompts = ["babe dida", "zu", "wowo wuwu " * 30, "ba", "dodo dada", "nini"]
    alone = [text_of(complete(generating, prompt, max_tokens=40)) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        together = list(
            threads.map(
                lambda prompt: text_of(complete(generating, prompt, max_tokens=40)), prompts
            )
        )
    assert together == alone


def test_short_request_ends_during_a_long_one(generating: servers.Pod) -> None:
    body = {**LONG, "prompt": "zuzu", "stream": True}  # beside which there is room for it
    url = f"{generating.url}/openai/v1/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        complete(generating, max_tokens=3)
        assert metric(generating.url, "pilotlight_generations") == 1
        assert next(line for line in lines if line) != "data: [DONE]"
    wait_idle(generating)


def test_disconnected_client_cancels_its_generation_and_frees_its_slot(
    generating: servers.Pod,
) -> None:
    before = metric(generating.url, "pilotlight_generated_tokens_total")
    body = {**LONG, "stream": True}
    url = f"{generating.url}/openai/v1/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as stream:
        next(stream.iter_lines())
    wait_idle(generating)
    generated = metric(generating.url, "pilotlight_generated_tokens_total")
    assert generated - before < LONG_TOKENS
    complete(generating, max_tokens=2)  # the engine serves others
    assert metric(generating.url, "pilotlight_generated_tokens_total") == generated + 2
    assert metric(generating.url, "pilotlight_generations") == 0


def test_slots_limit_generations(cluster: Cluster, models: Path) -> None:
    cluster.declare("chat", models / "tiny-gpt2")
    pod = cluster.pod(slots=1)
    complete(pod, max_tokens=1)
    url = f"{pod.url}/openai/v1/completions"
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", url, json={**LONG, "stream": True}) as stream,
    ):
        lines = stream.iter_lines()  # referenced: else the connection is closed
        next(lines)
        refused = client.post(url, json=LONG)
        other = {"model": "nobody", "input": "x"}  # refused before it is looked up
        assert client.post(f"{pod.url}/openai/v1/embeddings", json=other).status_code == 429
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-pilotlight-not-executed"] == "slots"


@pytest.mark.slow
def test_small_cache_serves_requests_in_turn(cluster: Cluster, models: Path) -> None:
    """Requests without pages are preempted and resumed later."""
    cluster.declare("chat", models / "tiny-gpt2")
    pages = 8 * 2 * 2 * 32 * 4 * 32  # eight pages of 32 tokens
    pod = cluster.pod(slots=8, generation_cache_bytes=pages)
    prompts = ["babe dida", "zu zu", "ba be bi", "dodo"]
    alone = [text_of(complete(pod, prompt, max_tokens=120)) for prompt in prompts]
    with ThreadPoolExecutor(4) as threads:
        together = list(
            threads.map(lambda prompt: text_of(complete(pod, prompt, max_tokens=120)), prompts)
        )
    assert together == alone
    too_long = post(
        f"{pod.url}/openai/v1/completions", {"model": "chat", "prompt": "babe", "max_tokens": 300}
    )
    assert too_long.status_code == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"


def test_changed_annotation_limits_concurrent_requests(cluster: Cluster, models: Path) -> None:
    def are_in_turn() -> bool:
        body = {"model": "chat", "prompt": "zuzu", "max_tokens": 20, "n": 3}
        indices = [each["choices"][0]["index"] for each in events(pod, "completions", body)]
        return indices == sorted(indices)

    cluster.declare("chat", models / "tiny-gpt2")
    pod = cluster.pod()
    assert not are_in_turn()
    cluster.declare("chat", models / "tiny-gpt2", policy=ModelPolicy(max_batch_size=1))
    servers.wait_until(are_in_turn, what="one choice after the other")


def test_cache_counts_towards_the_pods_memory(cluster: Cluster, models: Path) -> None:
    folder = models / "tiny-gpt2"
    weight_bytes = (folder / "model.safetensors").stat().st_size
    cluster.declare("chat", folder)
    pod = cluster.pod(memory_bytes=weight_bytes + (1 << 20), generation_cache_bytes=1 << 20)
    complete(pod, max_tokens=1)
    held = metric(pod.url, "pilotlight_tier_bytes", tier="device")
    assert weight_bytes + 900_000 < held <= weight_bytes + (1 << 20)
    small = cluster.pod("pod-b", memory_bytes=weight_bytes, generation_cache_bytes=1 << 20)
    body = {"model": "chat", "prompt": "babe"}
    refused = post(f"{small.url}/openai/v1/completions", body)
    assert refused.status_code == 507, refused.text
    assert "memory budget" in refused.json()["error"]["message"]


def test_request_ends_at_its_deadline(generating: servers.Pod) -> None:
    complete(generating, max_tokens=1)
    url = f"{generating.url}/openai/v1/completions"
    late = post(url, LONG, x_pilotlight_deadline_ms="150")
    assert late.status_code == 504, late.text
    assert late.json()["error"]["type"] == "timeout_error"
    wait_idle(generating)


def test_stream_past_its_deadline_ends_with_an_error(generating: servers.Pod) -> None:
    body = {**LONG, "stream": True}
    url = f"{generating.url}/openai/v1/completions"
    headers = {"x-pilotlight-deadline-ms": "400"}
    with httpx.stream("POST", url, json=body, headers=headers, trust_env=False, timeout=60) as s:
        lines = [line.removeprefix("data: ") for line in s.iter_lines() if line]
    assert json.loads(lines[-1])["error"]["type"] == "timeout_error"
    wait_idle(generating)


def test_stream_longer_than_the_drain_ends_with_an_error(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("chat", models / "tiny-gpt2")
    with cluster.pod_context("pod-a", drain_timeout=0.2) as pod:
        complete(pod, max_tokens=1)
        url = f"{pod.url}/openai/v1/completions"
        body = {**LONG, "stream": True}
        with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(pod.pid, signal.SIGTERM)
            rest = [line.removeprefix("data: ") for line in lines if line]
        error = json.loads(rest[-1])["error"]
        assert error["type"] == "service_unavailable_error"
        assert "pod-a ended" in error["message"]
        event = forkserver.wait_event(exited="pod-a")
        forkserver.events.append(event)  # the context waits for it, too
        assert event["status"] == 0


def test_embeddings_equal_those_of_v1(generating: servers.Pod) -> None:
    body = {"model": "embedder", "input": ["one", "quite another text"]}
    document = post(f"{generating.url}/openai/v1/embeddings", body).json()
    expected = predict(generating.url, "embedder", *body["input"]).json()["predictions"]
    for entry, vector in zip(document["data"], expected, strict=True):
        assert entry["embedding"] == pytest.approx(vector, abs=1e-6)
    assert [entry["index"] for entry in document["data"]] == [0, 1]
    assert document["usage"]["prompt_tokens"] == document["usage"]["total_tokens"] > 4


def test_tokens_are_embedded_as_their_text(generating: servers.Pod, models: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models / "tiny-bert")
    texts = ["one", "quite another text"]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    url = f"{generating.url}/openai/v1/embeddings"
    expected = post(url, {"model": "embedder", "input": texts}).json()
    several = post(url, {"model": "embedder", "input": rows}).json()
    one = post(url, {"model": "embedder", "input": rows[1]}).json()
    for seen, wanted in zip(
        [*several["data"], *one["data"]], [*expected["data"], expected["data"][1]], strict=True
    ):
        assert seen["embedding"] == pytest.approx(wanted["embedding"], abs=1e-6)
    assert several["usage"] == expected["usage"]


def test_lists_all_declared_models(cluster: Cluster, models: Path) -> None:
    pod = cluster.pod()

    def names() -> list[str]:
        return [card["id"] for card in get(f"{pod.url}/openai/v1/models").json()["data"]]

    assert names() == []
    cluster.declare("later", models / "tiny-gpt2")
    servers.wait_until(lambda: names() == ["later"], what="listed")
    assert get(f"{pod.url}/openai/v1/models/later").json()["id"] == "later"
    missing = get(f"{pod.url}/openai/v1/models/nobody")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_generates_over_v1_and_v2(generating: servers.Pod) -> None:
    (v1,) = predict(generating.url, "chat", "babe dida").json()["predictions"]
    v2 = infer_texts(generating.url, "chat", "babe dida").json()["outputs"][0]["data"]
    assert v2 == [v1]
    assert v1 == text_of(complete(generating, max_tokens=8))


def test_padding_does_not_change_v1_text(generating: servers.Pod) -> None:
    (alone,) = predict(generating.url, "chat", "ba").json()["predictions"]
    both = predict(generating.url, "chat", "ba", "dodo dada " * 9).json()["predictions"]
    assert both[0] == alone


USER = [{"role": "user", "content": "x"}]
USUAL: dict[str, dict[str, Any]] = {
    "completions": {"model": "chat", "prompt": "x"},
    "chat/completions": {"model": "chat", "messages": USER},
    "embeddings": {"model": "embedder", "input": "x"},
}


def bad(name: str, call: str, change: object, message: str, status: int = 400) -> ParameterSet:
    """A refused body: raw, or the default one with changed fields (None: omitted)."""
    body = change
    if isinstance(change, dict):
        fields = {**USUAL[call], **change}
        body = orjson.dumps({field: value for field, value in fields.items() if value is not None})
    return pytest.param(call, body, status, message, id=name)


TEXT, CHAT, EMBED = USUAL
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]


@pytest.mark.parametrize(
    ("call", "body", "status", "message"),
    [
        bad("malformed", TEXT, b"{", "not valid JSON"),
        bad("a-list", TEXT, b"[]", "JSON object"),
        bad("empty", TEXT, b"", "empty"),
        bad("too-large", TEXT, b"x" * 400_001, "400000 bytes", 413),
        bad("no-model", TEXT, {"model": None}, "model"),
        bad("unknown-model", TEXT, {"model": "nobody"}, "nobody", 404),
        bad("not-a-generator", TEXT, {"model": "embedder"}, "does not generate"),
        bad("cannot-be-loaded", TEXT, {"model": "broken"}, "nowhere", 503),
        bad("no-prompt", TEXT, {"prompt": None}, "prompt"),
        bad("no-tokens", TEXT, {"prompt": ""}, "no tokens"),
        bad("empty-list", TEXT, {"prompt": []}, "prompt"),
        bad("many-prompts", TEXT, {"prompt": ["a"] * 33}, "may have 32 prompts, has 33"),
        bad("many-texts", TEXT, {"prompt": ["a"] * 32, "n": 5}, "128 at most, was 160"),
        bad("mixed-prompts", TEXT, {"prompt": ["a", [1]]}, "prompt[1] must be a string, was [1]"),
        bad("an-empty-prompt", TEXT, {"prompt": ["a", ""]}, "no tokens"),
        bad("no-such-token", TEXT, {"prompt": [10**6]}, "from 0 to"),
        bad("negative-token", TEXT, {"prompt": [-1]}, "from 0 to"),
        bad("no-length", TEXT, {"max_tokens": 0}, "max_tokens must be 1 or more, was 0"),
        bad(
            "length-a-string",
            TEXT,
            {"max_tokens": "5"},
            "max_tokens must be a whole number, was '5'",
        ),
        bad("too-many-tokens", TEXT, {"max_tokens": 2000}, "1000 tokens"),
        bad("too-long", TEXT, {"prompt": "zu " * 600, "max_tokens": 900}, "maximum context"),
        bad("endless", TEXT, {"prompt": "x" * 300_000}, "300000 characters"),
        bad("too-hot", TEXT, {"temperature": 2.1}, "temperature"),
        bad("top-p", TEXT, {"top_p": 0}, "top_p"),
        bad("too-many-choices", TEXT, {"n": 17}, "n must be 16 or less, was 17"),
        bad("seed", TEXT, b'{"model": "chat", "prompt": "x", "seed": %d}' % 2**70, "seed"),
        bad("empty-stop", TEXT, {"stop": [""]}, "stop"),
        bad("stream", TEXT, {"stream": "yes"}, "stream"),
        bad("penalty", TEXT, {"frequency_penalty": 3}, "frequency_penalty"),
        bad("logprobs", TEXT, {"logprobs": 5}, "'logprobs' is not supported"),
        bad("no-messages", CHAT, {"messages": []}, "messages"),
        bad(
            "no-content", CHAT, {"messages": [{"role": "user"}]}, "messages[0].content is required"
        ),
        bad(
            "role",
            CHAT,
            {"messages": [{"role": "king", "content": "x"}]},
            "role must be 'system' or",
        ),
        bad("image", CHAT, {"messages": IMAGE}, "content"),
        bad("tools", CHAT, {"tools": [{}]}, "'tools' is not supported"),
        bad("json", CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        bad("not-an-embedder", EMBED, {"model": "chat"}, "does not embed"),
        bad("no-input", EMBED, {"input": []}, "input"),
        bad("too-many-inputs", EMBED, {"input": ["a"] * 1025}, "input"),
        bad("input-a-number", EMBED, {"input": 1}, "input must be a string or an array, was 1"),
        bad("input-no-such-token", EMBED, {"input": [[3], [2**63 - 1]]}, "from 0 to"),
        bad("encoding", EMBED, {"encoding_format": "hex"}, "encoding_format"),
        bad("dimensions", EMBED, {"dimensions": 4}, "dimensions"),
        bad("unknown-embedder", EMBED, {"model": "nobody"}, "nobody", 404),
    ],
)
def test_invalid_input_is_refused_in_openais_form(
    generating: servers.Pod, call: str, body: bytes, status: int, message: str
) -> None:
    response = post_bytes(f"{generating.url}/openai/v1/{call}", body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("call", USUAL)
def test_reads_a_compressed_body(generating: servers.Pod, call: str) -> None:
    url, body = f"{generating.url}/openai/v1/{call}", orjson.dumps(USUAL[call])
    assert post_bytes(url, gzip.compress(body), content_encoding="gzip").status_code == 200
    response = post_bytes(url, body, content_encoding="br")
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "identity, gzip, deflate"
    assert "content-encoding" in response.json()["error"]["message"]


def test_chat_needs_a_chat_template(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(models / "tiny-gpt2", folder, ignore=shutil.ignore_patterns("*.jinja"))
    cluster.declare("plain", folder)
    pod = cluster.pod()
    body = {"model": "plain", "messages": USER}
    response = post(f"{pod.url}/openai/v1/chat/completions", body)
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


def test_error_of_the_chat_template_is_invalid_input(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    folder = servers.copy_model(models / "tiny-gpt2", tmp_path / "strict")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    cluster.declare("strict", folder)
    body = {"model": "strict", "messages": USER}
    response = post(f"{cluster.pod().url}/openai/v1/chat/completions", body)
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]


def test_path_and_body_must_name_the_same_model(generating: servers.Pod) -> None:
    url = f"{generating.url}/serving/default~chat/openai/v1/completions"
    for name, status in (("chat", 200), ("default/chat", 200), ("embedder", 404)):
        response = post(url, {"model": name, "prompt": "x", "max_tokens": 1})
        assert response.status_code == status, response.text


@pytest.mark.slow
def test_generates_at_the_predict_pod(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("chat", models / "tiny-gpt2")
    entry, predict_pod = cluster.pod("pod-a"), cluster.pod("pod-b")
    servers.wait_until(
        lambda: (
            post(
                f"{entry.url}/openai/v1/completions",
                {"model": "chat", "prompt": "babe", "max_tokens": 2},
                x_pilotlight_predict=predict_pod.address,
            ).status_code
            == 200
        ),
        what="the entry pod knows the predict pod",
    )
    body = {"model": "chat", "prompt": "babe", "max_tokens": 12, "temperature": 0, "stream": True}
    url = f"{entry.url}/openai/v1/completions"
    headers = {"x-pilotlight-predict": predict_pod.address}
    with httpx.stream("POST", url, json=body, headers=headers, trust_env=False, timeout=60) as s:
        lines = [line for line in s.iter_lines() if line]
        assert s.headers["x-pilotlight-pod"] == "pod-a"
        assert s.headers["x-pilotlight-predict-pod"] == "pod-b"
        assert s.headers["x-pilotlight-start"] == "warm"
    assert lines[-1] == "data: [DONE]"
    assert cluster.tiers(spec)["pod-b"] == "device"
    assert cluster.tiers(spec).get("pod-a") != "device"
    wait_idle(entry)
    wide = {**LONG, "stream": True}
    with httpx.stream("POST", url, json=wide, headers=headers, trust_env=False, timeout=60) as s:
        lines_left = s.iter_lines()
        next(lines_left)
        assert metric(predict_pod.url, "pilotlight_generations") == 1
    wait_idle(entry)
    servers.wait_until(lambda: metric(predict_pod.url, "pilotlight_generations") == 0, what="ended")
    assert metric(predict_pod.url, "pilotlight_generated_tokens_total") < LONG_TOKENS
