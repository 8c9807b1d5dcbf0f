"""Texts of models as they are published: their ends, first spaces, defaults and conversations."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import infer_texts, post, predict

TEXT_END, TURN, TURN_END = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.items() | list }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if not thinks | default(true) %}<think></think>\n{% endif %}"
)
CHAT = [{"role": "user", "content": "x"}]
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"k": 1}'}}


def byte_tokenizer(*, end: str) -> PreTrainedTokenizerBase:
    """A token for each byte."""
    letters = {each: i for i, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, model_max_length=256, chat_template=TEMPLATE
    )


def word_tokenizer(*words: str) -> PreTrainedTokenizerBase:
    """As Llama 2's: `▁` for spaces, and a decoder that strips the first one."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    merges = []
    for piece in ["▁", *sorted({letter for word in words for letter in word})]:
        vocabulary.setdefault(piece, len(vocabulary))
    for word in words:
        for end in range(1, len(word) + 1):
            vocabulary.setdefault(f"▁{word[:end]}", len(vocabulary))
            merges.append((f"▁{word[: end - 1]}", word[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(dict.fromkeys(merges))))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=256,
    )


def write_scripted(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    following: Mapping[int, int],
    *,
    end: int,
    generation: Mapping[str, Any],
    sharpness: float = 1,
) -> None:
    """A Llama; a token that `following` does not name is followed by `end`.

    `sharpness`: with less, other tokens are drawn too.
    """
    size = len(tokenizer)
    width = (size + 7) // 8 * 8
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=256,
        eos_token_id=end,
    )
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.fill_(1 if "norm" in name else 0)
        network.model.embed_tokens.weight.copy_(torch.eye(size, width))
        for token in range(size):
            network.lm_head.weight[following.get(token, end), token] = sharpness
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))


@pytest.fixture(scope="module")
def pod(
    shared_cluster: Cluster, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> servers.Pod:
    folder = tmp_path_factory.mktemp("scripted")
    letters = byte_tokenizer(end=TURN_END)
    text_end, turn_end = letters.convert_tokens_to_ids([TEXT_END, TURN_END])
    says = letters("\nhi", add_special_tokens=False)["input_ids"]
    chain = {**dict(pairwise(says)), says[-1]: turn_end, turn_end: says[1]}
    ends_apart = {"eos_token_id": text_end}
    write_scripted(folder / "chat", letters, chain, end=text_end, generation=ends_apart)
    words = word_tokenizer("Hello", "world", "again")
    ids = words.convert_tokens_to_ids(["▁Hello", "▁world", "▁again"])
    chain = {**dict(pairwise(ids)), ids[-1]: 2}
    write_scripted(folder / "words", words, chain, end=2, generation={"eos_token_id": 2})
    drawn = {"eos_token_id": text_end, "do_sample": True, "top_k": 1, "temperature": 1.9}
    write_scripted(folder / "drawn", letters, {}, end=says[1], generation=drawn, sharpness=0.2)
    for name in ("chat", "words", "drawn"):
        shared_cluster.declare(name, folder / name)
    shared_cluster.declare("pairs", models / "tiny-t5")
    shared_cluster.declare("vectors", models / "tiny-bert", task="text-embedding")
    return shared_cluster.pod("pod-p", slots=8)


def ask(pod: servers.Pod, model: str, **fields: Any) -> dict[str, Any]:
    kind = "chat/completions" if "messages" in fields else "completions"
    body = {"model": model, "temperature": 0, **fields}
    response = post(f"{pod.url}/openai/v1/{kind}", body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def text_of(found: dict[str, Any]) -> str:
    (choice,) = found["choices"]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def test_the_tokenizers_end_of_turn_ends_an_answer(pod: servers.Pod) -> None:
    found = ask(pod, "chat", messages=CHAT, max_tokens=20)
    assert text_of(found) == "hi"
    assert found["choices"][0]["finish_reason"] == "stop"
    assert predict(pod.url, "chat", "\n").json()["predictions"] == ["hi"]


def test_end_tokens_may_be_ignored_added_and_put_off(pod: servers.Pod) -> None:
    ignored = ask(pod, "chat", messages=CHAT, max_tokens=8, ignore_eos=True)
    assert ignored["choices"][0]["finish_reason"] == "length"
    assert text_of(ignored) == "hihihi"  # special tokens are left out
    shown = ask(
        pod, "chat", messages=CHAT, max_tokens=4, ignore_eos=True, skip_special_tokens=False
    )
    assert text_of(shown) == f"hi{TURN_END}h"
    added = ask(pod, "chat", messages=CHAT, max_tokens=8, stop_token_ids=[ord("i") - 33])
    assert (text_of(added), added["choices"][0]["finish_reason"]) == ("h", "stop")
    late = ask(pod, "chat", messages=CHAT, max_tokens=8, min_tokens=6)
    assert late["usage"]["completion_tokens"] >= 6
    kept = ask(pod, "chat", messages=CHAT, stop="i", include_stop_str_in_output=True)
    assert text_of(kept) == "hi"


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_and_completion_read_as_one_text(pod: servers.Pod, *, stream: bool) -> None:
    body = {"model": "words", "prompt": "Hello", "temperature": 0, "stream": stream}
    response = post(f"{pod.url}/openai/v1/completions", body)
    if stream:
        lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
        events = [httpx.Response(200, text=line).json() for line in lines]
        assert "".join(each["choices"][0]["text"] for each in events) == " world again"
    else:
        assert text_of(response.json()) == " world again"


def test_v1_and_v2_give_the_same_continuation(pod: servers.Pod) -> None:
    texts = ("Hello", "Hello world")
    assert predict(pod.url, "words", *texts).json()["predictions"] == [" world again", " again"]
    v2 = infer_texts(pod.url, "words", *texts).json()["outputs"]
    assert [each["data"] for each in v2] == [[" world again", " again"]]


def test_a_models_own_defaults_hold_until_a_request_overrides_them(pod: servers.Pod) -> None:
    body = {"model": "drawn", "prompt": "a", "max_tokens": 8}
    url = f"{pod.url}/openai/v1/completions"
    own = {text_of(post(url, {**body, "seed": seed}).json()) for seed in range(4)}
    assert own == {"hhhhhhhh"}
    assert len({text_of(post(url, {**body, "seed": s, "top_k": -1}).json()) for s in range(4)}) > 1


def test_variables_of_the_template_change_the_prompt(pod: servers.Pod) -> None:
    plain, quick, bare, continued = (
        ask(pod, "chat", messages=CHAT, max_tokens=1, **fields)["usage"]["prompt_tokens"]
        for fields in (
            {},
            {"chat_template_kwargs": {"thinks": False}},
            {"add_generation_prompt": False},
            {"continue_final_message": True},
        )
    )
    assert quick == plain + len("<think></think>\n")
    assert bare == plain - len("?assistant\n")
    assert continued == bare - len("?\n")


def test_a_history_with_calls_of_tools_is_answered(pod: servers.Pod) -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "a", "content": "3"}
    found = ask(pod, "chat", messages=[*CHAT, turn, result, *CHAT], max_tokens=4)
    assert text_of(found) == "hi"


def test_a_prompt_may_be_cut_to_its_end(pod: servers.Pod) -> None:
    found = ask(pod, "chat", prompt="0" * 100, max_tokens=1, truncate_prompt_tokens=7)
    assert found["usage"]["prompt_tokens"] == 7
    found = ask(pod, "chat", prompt="0" * 400, max_tokens=16, truncate_prompt_tokens=-1)
    assert found["usage"]["prompt_tokens"] == 240


def test_a_text_to_text_model_completes(pod: servers.Pod) -> None:
    (whole,) = predict(pod.url, "pairs", "babe dida").json()["predictions"]
    found = text_of(ask(pod, "pairs", prompt="babe dida", max_tokens=64))
    assert found
    assert whole.startswith(found) or found.startswith(whole)


def test_a_token_that_the_model_does_not_have_is_refused(pod: servers.Pod) -> None:
    for field, value in (("stop_token_ids", [9999]), ("logit_bias", {"9999": 1})):
        body = {"model": "chat", "prompt": "a", field: value}
        refused = post(f"{pod.url}/openai/v1/completions", body)
        assert refused.status_code == 400
        assert field in refused.json()["error"]["message"]


def test_a_model_without_texts_names_the_protocols_that_it_has(pod: servers.Pod) -> None:
    refused = post(f"{pod.url}/openai/v1/completions", {"model": "vectors", "prompt": "a"})
    assert refused.status_code == 400
    assert "/v1/models/NAME:predict" in refused.json()["error"]["message"]
