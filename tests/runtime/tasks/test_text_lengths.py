"""Texts and token ids of any length are cut to the positions that the network has."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import AutoTokenizer

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import named_arrays, numeric_tensor
from registry.domain.model import TaskOptions
from runtime.engines.networks.configuration import output_limit, position_limit
from runtime.tasks.embedding import Embedding
from runtime.tasks.processors import load_processor
from tests.runtime.networks import load_network
from tests.servers import copy_model

ROWS = 40
"""Of the table of positions."""
SIZES = {
    "vocab_size": 600, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": ROWS, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip
LONG = " ".join(["fox"] * 3 * ROWS)
PADDED = (
    "Roberta", "XLMRoberta", "Camembert", "MPNet", "Longformer", "Data2VecText", "IBert", "Xmod",
    "Esm", "MarkupLM", "XLMRobertaXL", "RobertaPreLayerNorm", "Luke", "Lilt",
)  # fmt: skip
"""Architectures whose positions begin at `padding_idx + 1`."""
PLAIN = ("Bert", "Electra", "DebertaV2", "Nystromformer", "Yoso", "Ernie", "ConvBert", "Albert")
MORE: dict[str, dict[str, Any]] = {
    "Longformer": {"attention_window": [4, 4]},
    "Xmod": {"languages": ["en_XX"], "default_language": "en_XX", "adapter_reduction_factor": 2},
    "Esm": {"position_embedding_type": "absolute", "mask_token_id": 4, "token_dropout": False},
    "Luke": {"entity_vocab_size": 8, "entity_emb_size": 8},
    "MarkupLM": {"max_depth": 4, "xpath_unit_hidden_size": 4},
    "Lilt": {"hidden_size": 24, "channel_shrink_ratio": 2},
    "ConvBert": {"embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3},
    "Albert": {"embedding_size": 8},
    "Electra": {"embedding_size": 8},
}


def saved(models: Path, folder: Path, network: str, config: str, **fields: Any) -> Path:
    """Random weights; the tokenizer is tiny-bert's, which here names no limit."""
    made = getattr(transformers, network)(getattr(transformers, config)(**fields))
    made.save_pretrained(folder)
    AutoTokenizer.from_pretrained(models / "tiny-bert").save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    document = json.loads(settings.read_text())
    document.pop("model_max_length", None)
    settings.write_text(json.dumps(document))
    return folder


def width_of(folder: Path, text: str = LONG) -> int:
    """Tokens of a text as the network gets them, which it then computes."""
    processor, network = load_processor(folder, None), load_network(folder)
    inputs = processor.batching.validate(processor.preprocess(processor.read_instances([text])))
    processor.infer(network, inputs)
    return int(named_arrays(inputs)["input_ids"].shape[1])


@pytest.mark.parametrize("name", [*PADDED, *PLAIN])
def test_a_long_text_is_cut_to_the_positions_of_the_network(
    models: Path, tmp_path: Path, name: str
) -> None:
    fields = {**SIZES, **MORE.get(name, {})}
    folder = saved(models, tmp_path / "m", f"{name}Model", f"{name}Config", **fields)
    assert width_of(folder) == ROWS - (2 if name in PADDED else 0)


@pytest.mark.parametrize(
    ("kind", "fields", "tokens"),
    [
        pytest.param("GPT2", {"n_positions": 48}, 48, id="gpt2"),
        pytest.param("OPT", {"max_position_embeddings": 48}, 48, id="opt-offset"),
        pytest.param("Bloom", {"seq_length": 700}, 700, id="alibi"),
        pytest.param("Bloom", {}, None, id="alibi-without-a-limit"),
        pytest.param("Mpt", {"max_seq_len": 900}, 900, id="mpt"),
        pytest.param("Llama", {"max_position_embeddings": 200_000}, 200_000, id="rotary"),
        pytest.param("XLNet", {}, None, id="relative"),
        pytest.param("T5", {}, None, id="t5"),
        pytest.param("Bart", {"max_position_embeddings": 48}, 48, id="bart-offset"),
        pytest.param("Marian", {"max_position_embeddings": 48}, 48, id="sinusoidal"),
        pytest.param("LED", {"max_encoder_position_embeddings": 64}, 64, id="led"),
    ],
)
def test_the_limit_of_other_kinds_of_positions(
    kind: str, fields: dict[str, Any], tokens: int | None
) -> None:
    assert position_limit(getattr(transformers, f"{kind}Config")(**fields)) == tokens


def test_an_output_ends_at_the_decoders_last_position(models: Path, tmp_path: Path) -> None:
    sizes = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "max_position_embeddings": 24,
        "vocab_size": 600,
        "eos_token_id": 599,
        "forced_eos_token_id": None,
    }
    folder = saved(models, tmp_path / "m", "BartForConditionalGeneration", "BartConfig", **sizes)
    config = transformers.BartConfig(**sizes)
    assert output_limit(config) == 24
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= {"max_length": 100, "min_length": 20, "eos_token_id": None}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    processor, network = load_processor(folder, None), load_network(folder)
    (output,) = processor.infer(network, processor.preprocess([LONG]))
    assert 20 <= output.shape[1] <= 24


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-t5"])
def test_texts_are_padded_and_cut_beside_strings_that_end_outputs(
    models: Path, tmp_path: Path, name: str
) -> None:
    """Transformers tokenises a text itself to find these strings, without padding or limit."""
    folder = copy_model(models / name, tmp_path / "m")
    settings = folder / "generation_config.json"
    fields = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps({**fields, "stop_strings": ["zuzu"]}))
    texts = ["fox", "the quick fox", " ".join(["fox"] * 5000)]
    expected = named_arrays(load_processor(folder, None).preprocess(texts))
    processor, network = load_processor(folder, None), load_network(folder)
    processor.warm_up(network)
    found = named_arrays(processor.preprocess(texts))
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in expected.items()
    }


def test_token_ids_are_cut_to_the_positions_of_the_network(models: Path, tmp_path: Path) -> None:
    folder = saved(models, tmp_path / "m", "RobertaModel", "RobertaConfig", **SIZES)
    processor, network = load_processor(folder, None), load_network(folder)
    assert isinstance(processor, Embedding)
    processor.infer(network, processor.preprocess([[7] * ROWS]))
    ids = numeric_tensor("input_ids", np.full((1, ROWS), 7, np.int64))
    with pytest.raises(InvalidRequest, match=f"1 to {ROWS - 2} tokens"):
        processor.read_tensors([ids])


def test_a_declared_limit_holds_below_the_networks(models: Path) -> None:
    for wanted, seen in ((8, 8), (10_000, 64)):
        processor = load_processor(
            models / "tiny-bert", None, options=TaskOptions(max_tokens=wanted)
        )
        inputs = named_arrays(processor.preprocess([LONG]))
        assert inputs["input_ids"].shape[1] == seen
