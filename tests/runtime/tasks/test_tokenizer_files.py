"""Tokenizers without tokenizer.json: SentencePiece models, vocabularies, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers import CONFIG_MAPPING

from registry.domain.model import TaskOptions
from runtime.errors import ModelInvalid
from runtime.storage.listing import RemoteFile, asset_files
from runtime.tasks.text import TextEncoder
from runtime.tasks.tokenizer_files import load_tokenizer

SENTENCES = ["the cat sat on the mat", "a dog sat on a red fox", "two foxes run", "the red mat"] * 3


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("pieces") / "pieces"
    SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(prefix),
        vocab_size=25,
        minloglevel=2,
        pad_id=3,
    )
    return prefix.with_suffix(".model")


@pytest.mark.parametrize(
    ("kind", "names", "fields"),
    [
        pytest.param("t5", ["spiece.model"], {"extra_ids": 0}, id="t5"),
        pytest.param("mt5", ["spiece.model"], {}, id="mt5"),
        pytest.param("xlm-roberta", ["sentencepiece.bpe.model"], {}, id="xlm-roberta"),
        pytest.param("camembert", ["sentencepiece.bpe.model"], {}, id="camembert"),
        pytest.param("deberta-v2", ["spm.model"], {"vocab_type": "spm"}, id="deberta-v3"),
        pytest.param("xlnet", ["spiece.model"], {}, id="xlnet"),
        pytest.param("llama", ["tokenizer.model"], {}, id="llama"),
        pytest.param("mbart", ["sentencepiece.bpe.model"], {}, id="mbart"),
        pytest.param("rembert", ["sentencepiece.model"], {}, id="rembert"),
        pytest.param(
            "marian",
            ["source.spm", "target.spm", "vocab.json"],
            {"source_lang": "en", "target_lang": "de"},
            id="marian",
        ),
        pytest.param(
            "m2m_100",
            ["sentencepiece.bpe.model", "vocab.json"],
            {"tokenizer_class": "M2M100Tokenizer"},
            id="m2m100",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_sentencepiece_model_is_a_tokenizer(
    pieces: Path, tmp_path: Path, kind: str, names: list[str], fields: dict[str, Any]
) -> None:
    known = SentencePieceProcessor(model_file=str(pieces))
    for name in names:
        if name == "vocab.json":
            ids = {known.id_to_piece(index): index for index in range(known.vocab_size())}
            (tmp_path / name).write_text(json.dumps({**ids, "<pad>": len(ids)}))
        else:
            shutil.copy(pieces, tmp_path / name)
    write_settings(tmp_path, fields)
    (tmp_path / "config.json").write_text("{}")
    files = [RemoteFile(path.name, path.stat().st_size) for path in tmp_path.iterdir()]
    fetched = {file.path for file in asset_files(files, "s3://bucket/model")}
    assert fetched >= set(names)
    encoder = TextEncoder(tmp_path, CONFIG_MAPPING[kind](vocab_size=600))
    (tokens, *_) = encoder.encode(["the cat sat"])
    text = encoder.tokenizer.decode(tokens.data[0], skip_special_tokens=True)
    assert text.endswith("the cat sat")


def write_settings(folder: Path, fields: dict[str, Any]) -> None:
    document = {"model_max_length": 64, **fields}
    (folder / "tokenizer_config.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("kind", "files", "message"),
    [
        pytest.param("t5", {}, "no tokenizer: none of spiece.model", id="t5-none"),
        pytest.param("llama", {}, "no tokenizer: none of tokenizer.json", id="llama-none"),
        pytest.param("bert", {}, "no tokenizer: none of tokenizer.json", id="bert-none"),
        pytest.param(
            "t5", {"spiece.model": "x"}, "spiece.model is not a SentencePiece model", id="damaged"
        ),
        pytest.param(
            "llama",
            {"tokenizer.model": "IQ== 0\nIg== 1\n"},
            "tokenizer.model is not a SentencePiece model.*tiktoken, that library is not",
            id="tiktoken",
        ),
        pytest.param(
            "mistral",
            {"tekken.json": '{"config": {}, "vocab": []}'},
            "tekken.json, which needs mistral-common",
            id="tekken",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_read_names_what_is_missing(
    tmp_path: Path, kind: str, files: dict[str, str], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    write_settings(tmp_path, {})
    with pytest.raises(ModelInvalid, match=message):
        load_tokenizer(tmp_path, CONFIG_MAPPING[kind]())


def test_a_tokenizer_of_bytes_needs_no_vocabulary(tmp_path: Path) -> None:
    write_settings(tmp_path, {"tokenizer_class": "ByT5Tokenizer"})
    assert len(load_tokenizer(tmp_path, CONFIG_MAPPING["t5"]())("fox")["input_ids"]) == 4


def test_a_tokenizer_may_be_told_to_keep_the_case(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "fox", "Fox"])
    )
    config = CONFIG_MAPPING["bert"](vocab_size=6)
    seen = [
        TextEncoder(tmp_path, config, options=options).encode(["Fox"])[0].data.tolist()
        for options in (TaskOptions(), TaskOptions(keeps_case=True, adds_special_tokens=False))
    ]
    assert seen == [[[2, 4, 3]], [[5]]]
