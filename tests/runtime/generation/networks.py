"""Small networks of many architectures, with weights large enough that their tokens vary."""

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

END = 256
_LINEAR = {
    "head_dim": 8, "num_key_value_heads": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_GEMMA = {"head_dim": 8, "num_key_value_heads": 2, "sliding_window": 16, "query_pre_attn_scalar": 8}
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "gemma2": _GEMMA,
    "bloom": {"n_layer": 2, "n_head": 4},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "rotary_dim": 4},
    "falcon": {},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4},
    "mamba": {"state_size": 4},
    "rwkv": {"attention_hidden_size": 32, "context_length": 128},
    "qwen3_5_text": _LINEAR,
}


def small_network(kind: str) -> PreTrainedModel:
    common = {
        "vocab_size": 259,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**common, **SIZES[kind]})
    network: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return network
