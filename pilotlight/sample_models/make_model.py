"""Makes a model folder with random weights and a tokenizer, without any download.

The same name gives the same bytes each time. The command line runs it as a process:
`python -m pilotlight.sample_models.make_model NAME DIR`.
"""

import hashlib
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2TokenizerFast,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    T5TokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)
from transformers.core_model_loading import revert_weight_conversion

from pilotlight.sample_models.architectures import (
    ARCHITECTURES,
    T5_PREFIXES,
    Architecture,
    Family,
    byte_level_vocabulary,
    unigram_pieces,
    wordpiece_vocabulary,
)

SENTINEL_COUNT = 100
END_OF_TEXT = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def make_model(name: str, folder: Path) -> Path:
    """Write the model `name` to `folder`; files with the same names are replaced atomically."""
    architecture = ARCHITECTURES[name]
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
    try:
        _write_transformers(architecture, name, unfinished)
        for path in sorted(unfinished.iterdir()):
            path.chmod(0o644)
            os.replace(path, folder / path.name)  # memory maps of the former file stay valid
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _write_transformers(architecture: Architecture, name: str, folder: Path) -> None:
    skeleton = _write_assets(architecture, folder)
    # Under the names that published files have, which differ from those of transformers 5.
    weights = revert_weight_conversion(skeleton, _random_weights(skeleton, name))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _write_assets(architecture: Architecture, folder: Path) -> PreTrainedModel:
    """Write all files but the weights; returns the network without memory for its weights."""
    skeleton = _ASSETS[architecture.family](architecture, folder)
    skeleton.config.architectures = [type(skeleton).__name__]
    skeleton.config.save_pretrained(folder)
    return skeleton


def _t5_assets(architecture: Architecture, folder: Path) -> PreTrainedModel:
    count = architecture.piece_count
    pieces = unigram_pieces(count, sentinel_count=SENTINEL_COUNT)
    T5TokenizerFast(vocab=pieces, extra_ids=SENTINEL_COUNT, model_max_length=512).save_pretrained(
        folder
    )
    config = T5Config(
        **architecture.shape,
        decoder_start_token_id=0,
        tie_word_embeddings=True,
        task_specific_params={task: {"prefix": prefix} for task, prefix in T5_PREFIXES.items()},
    )
    config.dtype = "float32"
    never_generated = [0, 2, *range(count - SENTINEL_COUNT, config.vocab_size)]
    GenerationConfig(
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
        min_new_tokens=architecture.new_token_count,
        max_new_tokens=architecture.new_token_count,
        no_repeat_ngram_size=1,
        suppress_tokens=never_generated,
        do_sample=False,
        num_beams=1,
    ).save_pretrained(folder)
    with torch.device("meta"):
        return T5ForConditionalGeneration(config)


def _bert_assets(architecture: Architecture, folder: Path) -> PreTrainedModel:
    config = BertConfig(**architecture.shape, id2label=_labels(architecture.label_count))
    config.dtype = "float32"
    BertTokenizerFast(
        vocab=wordpiece_vocabulary(architecture.piece_count),
        model_max_length=config.max_position_embeddings,
    ).save_pretrained(folder)
    with torch.device("meta"):
        return BertForSequenceClassification(config)


def _vit_assets(architecture: Architecture, folder: Path) -> PreTrainedModel:
    config = ViTConfig(**architecture.shape, id2label=_labels(architecture.label_count))
    config.dtype = "float32"
    size = config.image_size
    ViTImageProcessorPil(size={"height": size, "width": size}).save_pretrained(folder)
    with torch.device("meta"):
        return ViTForImageClassification(config)


def _text_assets(
    architecture: Architecture,
    folder: Path,
    *,
    config_class: type[PretrainedConfig],
    network: type[PreTrainedModel],
) -> PreTrainedModel:
    """With the tokenizer and chat template of GPT-2."""
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary, merges = byte_level_vocabulary(architecture.piece_count, alphabet, END_OF_TEXT)
    tokenizer = GPT2TokenizerFast(vocab=vocabulary, merges=merges)
    tokenizer.chat_template = CHAT_TEMPLATE
    end = vocabulary[END_OF_TEXT]
    config = config_class(**architecture.shape, bos_token_id=end, eos_token_id=end)
    config.dtype = "float32"
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        max_new_tokens=architecture.new_token_count,
        do_sample=False,
    ).save_pretrained(folder)
    with torch.device("meta"):
        return network(config)


_ASSETS: Mapping[Family, Callable[[Architecture, Path], PreTrainedModel]] = {
    Family.T5: _t5_assets,
    Family.BERT: _bert_assets,
    Family.VIT: _vit_assets,
    Family.GPT2: partial(_text_assets, config_class=GPT2Config, network=GPT2LMHeadModel),
    Family.LLAMA: partial(_text_assets, config_class=LlamaConfig, network=LlamaForCausalLM),
    Family.QWEN2: partial(_text_assets, config_class=Qwen2Config, network=Qwen2ForCausalLM),
}


def _labels(count: int) -> dict[int, str]:
    return {index: f"class-{index + 1:04d}" for index in range(count)}


def _random_weights(skeleton: PreTrainedModel, name: str) -> dict[str, torch.Tensor]:
    """Weights with the usual scales of initialisation; `name` seeds the generator."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    generator = np.random.Generator(np.random.PCG64(seed))
    tied = set(skeleton.all_tied_weights_keys)
    key_size = getattr(skeleton.config, "d_kv", 1)
    weights = {}
    for key, tensor in sorted(skeleton.state_dict().items()):
        if key in tied:
            continue
        shape = tuple(tensor.shape)
        scale = _scale_of(key, shape, key_size)
        if scale is None:
            value = np.ones(shape, dtype=np.float32)
        else:
            value = generator.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        weights[key] = torch.from_numpy(value)
    return weights


def _scale_of(key: str, shape: Sequence[int], key_size: int) -> float | None:
    """Standard deviation of a weight; None for a scale of a normalisation layer, which is ones."""
    if key.endswith("bias"):
        return 0.02
    if "norm" in key.lower() or ".ln_" in key:
        return None
    if ".wte." in key or ".wpe." in key:
        return 0.05  # small compared with the output of the layers, so that tokens do not repeat
    if ".c_" in key:  # stored as (inputs, outputs)
        return 1.0 / math.sqrt(shape[0])
    if key == "shared.weight":
        return 1.0
    if "relative_attention_bias" in key or "embeddings" in key or "embed_tokens" in key:
        return 0.1
    fan_in = float(math.prod(shape[1:]))
    # T5 does not divide attention scores by the square root of the key size; the query weight does.
    return 1.0 / math.sqrt(fan_in * (key_size if key.endswith(".q.weight") else 1))


if __name__ == "__main__":
    made = make_model(sys.argv[1], Path(sys.argv[2]))
    size = sum(path.stat().st_size for path in made.rglob("*"))
    sys.stdout.write(f"made {sys.argv[1]} in {made}: {size / 1e6:.1f} MB\n")
