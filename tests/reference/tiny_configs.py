"""Configurations of any architecture, shrunk: each field that sets a size gets a small one."""

from collections.abc import Mapping
from typing import Any, Final

from transformers import CONFIG_MAPPING, PretrainedConfig

VOCABULARY: Final = 101
_SIZES: Final[Mapping[str, tuple[int, str]]] = {
    "tokens": (VOCABULARY, "vocab_size src_vocab_size tgt_vocab_size vocab_size_per_layer_input"),
    # Two more than texts need: some architectures count from `pad_token_id + 1`.
    "positions": (
        130,
        "max_position_embeddings n_positions n_ctx max_seq_len model_max_length max_length"
        " max_target_positions max_source_positions",
    ),
    "width": (
        32,
        "hidden_size d_model n_embd emb_dim dim embedding_size embedding_dim word_embed_proj_dim"
        " pooler_hidden_size attention_hidden_size pooler_output_size lru_width d_latents",
    ),
    "layers": (
        2,
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers"
        " num_decoder_layers num_blocks num_self_attends_per_block",
    ),
    "heads": (
        4,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads"
        " decoder_attention_heads swa_num_attention_heads linear_num_value_heads linear_num_heads"
        " num_self_attention_heads num_cross_attention_heads",
    ),
    "groups of heads": (
        2,
        "num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads"
        " index_n_heads",
    ),
    "width of a head": (
        8,
        "head_dim swa_head_dim d_kv d_head kv_channels attention_head_dim dim_head index_head_dim"
        " qk_nope_head_dim qk_rope_head_dim v_head_dim rotary_dim linear_key_head_dim"
        " linear_value_head_dim linear_head_dim attention_head_size",
    ),
    "inner width": (
        64,
        "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner dff dim_ff"
        " ffn_hidden_size expert_ffn_hidden_size shared_intermediate_size moe_intermediate_size"
        " shared_expert_intermediate_size shared_experts_intermediate_size feed_forward_size",
    ),
    "experts": (4, "num_experts n_routed_experts num_local_experts moe_num_experts"),
    "experts of a token": (
        2,
        "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts",
    ),
    "one": (
        1,
        "n_group topk_group n_groups num_expert_group n_shared_experts first_k_dense_replace"
        " num_dense_layers",
    ),
    "ranks": (16, "q_lora_rank kv_lora_rank o_lora_rank qk_head_dim embedding_rank adapter_rank"),
    "window": (
        8,
        "sliding_window sliding_window_size local_attention window_size attention_window_size"
        " mamba_d_state state_size ssm_state_size hidden_size_per_layer_input laurel_rank"
        " router_hidden_size index_topk num_latents mamba_chunk_size chunk_size",
    ),
    "kernel": (4, "mamba_d_conv conv_kernel mamba_dt_rank time_step_rank"),
    "types": (2, "type_vocab_size"),
    "image": (32, "image_size"),
    "patch": (8, "patch_size"),
    "embedded": (16, "embed_dim groups_width"),
    "other vocabularies": (
        100,
        "entity_vocab_size shape_vocab_size pronunciation_vocab_size num_hash_buckets",
    ),
}
SIZES: Final[Mapping[str, int]] = {
    name: value for value, names in _SIZES.values() for name in names.split()
}
"""By the names that configurations have for them."""
STAGES: Final[Mapping[str, list[int]]] = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [16, 32, 64, 64],
    "embed_dims": [16, 32, 64, 64],
    "num_heads": [1, 2, 4, 4],
    "num_attention_heads": [1, 2, 4, 4],
}
"""Of networks in stages: as many as there are by default."""
TOKENS: Final[Mapping[str, int]] = {
    "bos_token_id": 0, "cls_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
    "unk_token_id": 3, "mask_token_id": 4, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
"""The numbers of the special tokens in the suite's tokenizers."""
_MAMBA: Final = {"mamba_n_heads": 4, "mamba_d_head": 16}
_KINDS: Final = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
_EXPERTS: Final = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
_IN_STAGES: Final = {"image_size": 64, "patch_size": 4}
_SWIN: Final = {"image_size": 64, "patch_size": 2, "window_size": 4}
_WINDOWS: Final = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
}
OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "bit": {"num_groups": 8},
    "cvt": {"embed_dim": [16, 32, 64], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
    "convnext": _IN_STAGES,
    "convnextv2": _IN_STAGES,
    "data2vec-vision": {"out_indices": [0, 1]},
    "deepseek_v2": _EXPERTS,
    "donut-swin": _SWIN,
    "dots1": _EXPERTS,
    "efficientnet": {"width_coefficient": 0.2, "depth_coefficient": 0.2, "hidden_dim": 256},
    "esm": {"vocab_size": VOCABULARY, "position_embedding_type": "rotary"},
    "esmc": {"num_key_value_heads": 4},
    "focalnet": _IN_STAGES,
    "gemma3n_text": {
        **_WINDOWS, "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0], "intermediate_size": 64
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**_MAMBA, **_KINDS},
    "hgnet_v2": {
        "hidden_sizes": [32, 64, 64, 64], "embedding_size": 16, "stem_channels": [3, 8, 16],
        "stage_in_channels": [16, 32, 64, 64], "stage_mid_channels": [8, 16, 16, 16],
        "stage_out_channels": [32, 64, 64, 64], "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [2, 2, 2, 2],
    },
    "hiera": {"embed_dim": 16, "depths": [1, 1, 1, 1], "image_size": [64, 64]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8, "input_size": 32, "visual_embed": False},
    "levit": {"image_size": 224, "patch_size": 16, "key_dim": [8, 8, 8], "down_ops": [
        ["Subsample", 8, 4, 4, 2, 2], ["Subsample", 8, 8, 4, 2, 2]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "mistral4": {"head_dim": 16},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilevitv2": {"image_size": 64, "patch_size": 2, "width_multiplier": 0.25},
    "mobilebert": {"embedding_size": 16},
    "nemotron": {"num_key_value_heads": 2},
    "neomme": {"head_dim": 16},
    "pvt": {"image_size": 64, "num_labels": 3},
    "pvt_v2": {"image_size": 64},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 2, "ngram_vocab_size_base": 64,
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "num_key_value_heads": 4},
    "reformer": {
        "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 128,
        "attn_layers": ["local", "lsh"], "hash_seed": 0, "num_buckets": 2,
    },
    "roc_bert": {"pronunciation_embed_dim": 16, "shape_embed_dim": 16},
    "swin": _SWIN,
    "swinv2": _SWIN,
    "t5": {"decoder_start_token_id": 1},
    "textnet": {
        "image_size": [64, 64], "hidden_sizes": [16] * 5, "stem_out_channels": 16,
        "depths": [3, 4, 4, 4],
    },
    "xlstm": {"hidden_size": 64, "embedding_dim": 64, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 64, "attention_head_dim": 16, "use_mamba_kernels": False,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
    },
    "zamba2": {
        "attention_hidden_size": 64, "attention_head_dim": 16, "n_mamba_heads": 8,
        "mamba_headdim": 8, "use_mamba_kernels": False,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""What single architectures need besides, by their `model_type`."""


def tiny_config(kind: str, **fields: Any) -> PretrainedConfig:
    """A small configuration of an architecture by its `model_type`."""
    config_class = CONFIG_MAPPING[kind]
    chosen = {**_fields(config_class()), **fields}
    config: PretrainedConfig = config_class(**chosen)
    return config


def _fields(plain: PretrainedConfig) -> dict[str, Any]:
    own = {key: value for key, value in plain.to_dict().items() if key not in plain.attribute_map}
    chosen: dict[str, Any] = {
        name: value for name, value in SIZES.items() if type(own.get(name)) is int
    }
    chosen |= {name: STAGES[name][: len(own[name])] for name in STAGES if _is_list(own, name)}
    chosen |= {name: value for name, value in TOKENS.items() if name in own}
    if own.get("head_dim", 0) is None:
        chosen["head_dim"] = SIZES["head_dim"]
    if "kv_lora_rank" in own and "num_key_value_heads" in chosen:
        chosen["num_key_value_heads"] = chosen["num_attention_heads"]  # no groups of heads
    chosen |= _layer_kinds(own)
    chosen |= OWN.get(plain.model_type, {})
    for name in plain.sub_configs:
        if (part := getattr(plain, name, None)) is not None:
            fields = {"model_type": part.model_type, **_fields(part)}
            if name == "decoder" and plain.is_encoder_decoder:
                fields |= {"is_decoder": True, "add_cross_attention": True}
            chosen[name] = fields
    return chosen


def _is_list(own: Mapping[str, Any], name: str) -> bool:
    return isinstance(own.get(name), list | tuple)


def _layer_kinds(own: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of kinds of layers with each kind once, and as many layers."""
    names = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")
    kinds = {name: list(dict.fromkeys(own[name])) for name in names if own.get(name)}
    if not kinds:
        return {}
    layers = max(2, *map(len, kinds.values()))
    filled = {name: each + each[-1:] * (layers - len(each)) for name, each in kinds.items()}
    return {**filled, "num_hidden_layers": layers}
