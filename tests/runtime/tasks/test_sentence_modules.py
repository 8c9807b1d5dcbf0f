"""Vectors are those that a sentence-transformers folder's own files define."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, BertConfig, BertModel, T5Config, T5EncoderModel

from common.inference_protocol.tensors import named_arrays
from registry.domain.model import Answers, Task, TaskOptions
from runtime.errors import ModelInvalid
from runtime.storage.listing import RemoteFile, asset_files, weight_files
from runtime.tasks.embedding import Embedding, pool
from runtime.tasks.processors import load_processor
from tests.runtime.networks import load_network

TEXTS = ["the quick Fox jumps", "a dog", "The lazy dog jumps over the fox again"]
OLD, NEW = "sentence_transformers.models.", "sentence_transformers.base.modules."
NORMALIZE = ("2_Normalize", "Normalize")


def sentence_folder(
    models: Path,
    folder: Path,
    pooling: dict[str, Any],
    *later: tuple[str, str],
    package: str = OLD,
    **files: Any,
) -> Path:
    """As sentence-transformers saves it; `files`: names without `.json`."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        config = BertConfig.from_pretrained(models / "tiny-bert", architectures=None)
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    AutoTokenizer.from_pretrained(models / "tiny-bert").save_pretrained(folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *later]
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"{package}{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    write(folder / "modules.json", listed)
    write(folder / "1_Pooling/config.json", {"word_embedding_dimension": 64, **pooling})
    for name, content in files.items():
        write(folder / f"{name}.json", content)
    return folder


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def vectors(folder: Path, texts: list[str], options: TaskOptions | None = None) -> Any:
    """Served vectors of texts that are inferred together."""
    processor = load_processor(folder, None, options=options or TaskOptions())
    assert isinstance(processor, Embedding)
    inputs = processor.batching.validate(processor.preprocess(texts))
    outputs = processor.postprocess(processor.infer(load_network(folder), inputs))
    (declared,) = processor.output_types()
    assert declared["shape"][1] == outputs[0].shape[1]
    assert (declared["name"], declared["datatype"]) == (outputs[0].name, outputs[0].datatype)
    return outputs[0].data


def tokens_of(folder: Path, text: str) -> Any:
    """The last layer's vector of each token of one text, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=64)
    with torch.no_grad():
        return BertModel.from_pretrained(folder).eval()(**encoded).last_hidden_state[0].numpy()


def places(rows: Any) -> Any:
    return np.arange(1, len(rows) + 1)[:, None]


POOLED = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(axis=0),
    "mean": lambda rows: rows.mean(axis=0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(axis=0) / np.sqrt(len(rows)),
    "weightedmean": lambda rows: (rows * places(rows)).sum(axis=0) / places(rows).sum(),
    "lasttoken": lambda rows: rows[-1],
}


@pytest.mark.parametrize("mode", POOLED)
def test_tokens_are_pooled_as_the_folder_says(models: Path, tmp_path: Path, mode: str) -> None:
    flag = f"pooling_mode_{mode}"
    flag = flag if mode in ("mean_sqrt_len_tokens", "lasttoken") else f"{flag}_token"
    flag = flag if mode in ("cls", "lasttoken", "mean_sqrt_len_tokens") else f"{flag}s"
    folder = sentence_folder(
        models, tmp_path / "m", {"pooling_mode_mean_tokens": False, flag: True}
    )
    seen = vectors(folder, TEXTS)
    expected = np.stack([POOLED[mode](tokens_of(folder, text)) for text in TEXTS])
    assert seen == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("mode", POOLED)
def test_padding_before_a_text_is_not_pooled(mode: str) -> None:
    hidden = torch.randn(1, 5, 4)
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    expected = POOLED[mode](hidden[0, 2:].numpy())
    assert pool(hidden, mask, [mode])[0].numpy() == pytest.approx(expected, abs=1e-6)


def test_several_modes_are_put_together_in_their_order(models: Path, tmp_path: Path) -> None:
    old = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    rows = tokens_of(sentence_folder(models, tmp_path / "old", old), TEXTS[0])
    expected = np.concatenate([POOLED["cls"](rows), POOLED["mean"](rows)])
    assert vectors(tmp_path / "old", TEXTS[:1])[0] == pytest.approx(expected, abs=1e-4)
    named = {"pooling_mode": ["mean", "cls"]}
    sentence_folder(models, tmp_path / "new", named, package=NEW)
    swapped = np.concatenate([POOLED["mean"](rows), POOLED["cls"](rows)])
    assert vectors(tmp_path / "new", TEXTS[:1])[0] == pytest.approx(swapped, abs=1e-4)


def test_vectors_have_length_one_only_where_the_folder_normalises(
    models: Path, tmp_path: Path
) -> None:
    mode = {"pooling_mode": "cls"}
    plain = vectors(sentence_folder(models, tmp_path / "a", mode), TEXTS)
    unit = vectors(sentence_folder(models, tmp_path / "b", mode, NORMALIZE), TEXTS)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert abs(lengths - 1).min() > 0.01
    assert unit == pytest.approx(plain / lengths, abs=1e-5)


def test_a_folder_without_modules_has_the_normalised_mean(models: Path, tmp_path: Path) -> None:
    folder = sentence_folder(models, tmp_path / "m", {})
    (folder / "modules.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "architectures": ["BertModel"]})
    rows = tokens_of(folder, TEXTS[0]).mean(axis=0)
    assert vectors(folder, TEXTS[:1])[0] == pytest.approx(rows / np.linalg.norm(rows), abs=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_dense_modules_have_weights_of_their_own(models: Path, tmp_path: Path, bias: bool) -> None:
    folder = sentence_folder(models, tmp_path / "m", {}, ("2_Dense", "Dense"), NORMALIZE)
    write(
        folder / "2_Dense/config.json",
        {
            "in_features": 32,
            "out_features": 8,
            "bias": bias,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
    )
    linear = torch.nn.Linear(32, 8, bias=bias)
    tensors = {f"linear.{name}": value for name, value in linear.state_dict().items()}
    save_file(tensors, folder / "2_Dense/model.safetensors")
    rows = torch.from_numpy(tokens_of(folder, TEXTS[0])).mean(0)
    with torch.no_grad():
        expected = torch.nn.functional.normalize(linear(rows).tanh(), dim=0).numpy()
    assert vectors(folder, TEXTS[:1])[0] == pytest.approx(expected, abs=1e-5)
    files = [
        RemoteFile(str(path.relative_to(folder)), path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    assert "2_Dense/model.safetensors" in {each.path for each in asset_files(files, "s3://b/m")}
    assert [each.path for each in weight_files(files, "s3://b/m", None)] == ["model.safetensors"]


def test_texts_are_cut_and_lowered_as_the_folder_says(models: Path, tmp_path: Path) -> None:
    fields = {"max_seq_length": 6, "do_lower_case": True}
    folder = sentence_folder(models, tmp_path / "m", {}, sentence_bert_config=fields)
    processor = load_processor(folder, None)
    long, upper, lower = (
        named_arrays(processor.preprocess([text]))["input_ids"]
        for text in ("fox " * 30, "THE FOX", "the fox")
    )
    assert long.shape == (1, 6)
    assert upper.tolist() == lower.tolist()


def test_the_default_prompt_is_put_before_each_text(models: Path, tmp_path: Path) -> None:
    prompts = {
        "prompts": {"query": "the lazy dog ", "document": ""},
        "default_prompt_name": "query",
    }
    folder = sentence_folder(models, tmp_path / "a", {}, config_sentence_transformers=prompts)
    plain = sentence_folder(models, tmp_path / "b", {})
    whole = vectors(plain, [f"the lazy dog {text}" for text in TEXTS])
    assert vectors(folder, TEXTS) == pytest.approx(whole, abs=1e-5)


def test_a_prompt_may_be_left_out_of_the_pooling(models: Path, tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "the lazy dog "}, "default_prompt_name": "query"}
    folder = sentence_folder(
        models, tmp_path / "m", {"include_prompt": False}, config_sentence_transformers=prompts
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    count = len(tokenizer("the lazy dog ")["input_ids"]) - 1
    expected = np.stack(
        [tokens_of(folder, f"the lazy dog {text}")[count:].mean(axis=0) for text in TEXTS]
    )
    assert vectors(folder, TEXTS) == pytest.approx(expected, abs=1e-4)
    processor, network = load_processor(folder, None), load_network(folder)
    ids = tokenizer(TEXTS[1])["input_ids"]
    (own,) = processor.infer(network, processor.preprocess([ids]))
    assert own.data[0] == pytest.approx(tokens_of(folder, TEXTS[1]).mean(axis=0), abs=1e-4)


def test_a_generating_networks_folder_with_modules_embeds_texts(
    models: Path, tmp_path: Path
) -> None:
    folder = sentence_folder(models, tmp_path / "m", {"pooling_mode": "lasttoken"})
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "architectures": ["BertLMHeadModel"]})
    expected = tokens_of(folder, TEXTS[0])[-1]
    assert vectors(folder, TEXTS[:1])[0] == pytest.approx(expected, abs=1e-4)


def test_the_encoder_of_a_t5_embeds_texts(models: Path, tmp_path: Path) -> None:
    folder = sentence_folder(models, tmp_path / "m", {})
    (folder / "model.safetensors").unlink()
    config = T5Config(vocab_size=600, d_model=64, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    T5EncoderModel(config).save_pretrained(folder)
    assert vectors(folder, TEXTS).shape == (3, 64)


def test_kserve_answers_with_64_bits(models: Path, tmp_path: Path) -> None:
    folder = sentence_folder(models, tmp_path / "m", {}, NORMALIZE)
    seen = vectors(folder, TEXTS, TaskOptions(answers=Answers.KSERVE))
    assert seen.dtype == np.float64
    assert seen == pytest.approx(vectors(folder, TEXTS), abs=1e-7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"modules": [{"path": "", "type": f"{OLD}WordEmbeddings"}]},
            "modules.json has module WordEmbeddings in folder ''",
            id="words",
        ),
        pytest.param(
            {
                "modules": [
                    {"path": "", "type": f"{OLD}Transformer"},
                    {"path": "1_LSTM", "type": f"{OLD}LSTM"},
                ]
            },
            "module LSTM in folder '1_LSTM'",
            id="lstm",
        ),
        pytest.param(
            {"modules": [{"path": "", "type": "custom_st.Transformer"}]},
            "custom_st.Transformer, which is code that came with the model",
            id="code",
        ),
        pytest.param(
            {"modules": [{"path": "0_Transformer", "type": f"{OLD}Transformer"}]},
            "begins with module Transformer in folder '0_Transformer'",
            id="older",
        ),
        pytest.param(
            {"modules": [{"path": "", "type": f"{OLD}Transformer"}]},
            "must have one Pooling",
            id="no-pooling",
        ),
        pytest.param({"modules": {}}, "modules.json must hold a JSON list", id="no-list"),
        pytest.param(
            {"modules": [{"path": "../x", "type": f"{OLD}Pooling"}]},
            r"modules.json\[0\] must have a type and a path",
            id="path",
        ),
        pytest.param(
            {"1_Pooling/config": {"pooling_mode": "median"}},
            "1_Pooling/config.json: pooling_mode must be of cls, max",
            id="mode",
        ),
        pytest.param(
            {"sentence_bert_config": {"transformer_task": "fill-mask"}},
            "sentence_bert_config.json: transformer_task 'fill-mask'",
            id="task",
        ),
        pytest.param(
            {"sentence_bert_config": {"max_seq_length": -1}},
            "max_seq_length must be a number",
            id="length",
        ),
        pytest.param(
            {"config_sentence_transformers": {"default_prompt_name": "q"}},
            "default_prompt_name 'q' is not among prompts",
            id="prompt",
        ),
        pytest.param(
            {
                "modules": [
                    {"path": "", "type": f"{OLD}Transformer"},
                    {"path": "1_Pooling", "type": f"{OLD}Pooling"},
                    {"path": "2_Dense", "type": f"{OLD}Dense"},
                ],
                "2_Dense/config": {"in_features": 32, "out_features": 8},
            },
            "2_Dense has no model.safetensors; pytorch_model.bin",
            id="pickled-dense",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_its_file(
    models: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = sentence_folder(models, tmp_path / "m", {}, **change)
    with pytest.raises(ModelInvalid, match=message):
        load_processor(folder, Task.TEXT_EMBEDDING)


def test_the_older_layout_is_refused_by_its_folder() -> None:
    paths = (
        "modules.json",
        "0_Transformer/config.json",
        "0_Transformer/model.safetensors",
        "1_Pooling/config.json",
    )
    with pytest.raises(ModelInvalid, match="has its network in 0_Transformer/"):
        asset_files([RemoteFile(path, 10) for path in paths], "s3://bucket/model")
