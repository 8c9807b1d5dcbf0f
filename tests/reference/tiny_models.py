"""Small models of any architecture with random weights, as `save_pretrained` writes them."""

import inspect
import math
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoImageProcessor,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

from tests.reference.tiny_configs import TOKENS, VOCABULARY

NEW_TOKENS: Final = 8
_SPECIAL: Final = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_TYPE_ROWS: Final = 2
_EMBEDDED: Final = (1.0, 0.3, 0.1, 0.03, 3.0)
"""Tried in turn: some architectures multiply embeddings, others normalise or tie them."""
_PROCESSED_AS: Final = {"dinov2_with_registers": "dinov2"}
"""Architectures whose images are processed as another one's."""
_PAD_LEFT: Final = ("xlnet",)
"""Architectures that classify by the last token, which padding must not follow."""


def write_network(
    folder: Path, config: PretrainedConfig, class_name: str, *, seed: int
) -> PreTrainedModel:
    """Save a network whose weights are large enough that its answers vary, and return it."""
    torch.manual_seed(seed)
    network: PreTrainedModel = getattr(transformers, class_name)(config)
    _vary(network, _EMBEDDED[seed % len(_EMBEDDED)])
    _set_statistics(network)
    if network.can_generate():
        network.generation_config = GenerationConfig(
            max_new_tokens=NEW_TOKENS,
            **{name: TOKENS[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
            decoder_start_token_id=getattr(config, "decoder_start_token_id", None),
        )
    network.save_pretrained(folder)
    return network


@torch.no_grad()
def _vary(network: PreTrainedModel, embedded: float) -> None:
    """Weights that keep the size of what they multiply, so that every layer and token counts.

    Biases and statistics get values that are not all alike. `embedded`: the size of embeddings.
    """
    for name, parameter in network.named_parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.dim() > 1:
            gain = 2 if parameter.dim() > 2 else 1  # many convolutions have a layer without one
            wanted = embedded if "embed" in name else gain / math.sqrt(parameter[0].numel())
            parameter.mul_(wanted / parameter.square().mean().sqrt().clamp(min=1e-6))
        elif name.endswith("bias"):
            parameter.add_(torch.randn_like(parameter) * 0.1)
        else:
            parameter.mul_(1 + torch.randn_like(parameter) * 0.1)
    unsaved = {
        f"{path}.{name}" if path else name
        for path, module in network.named_modules()
        for name in module._non_persistent_buffers_set
    }
    for name, buffer in network.named_buffers():
        if name not in unsaved and buffer.is_floating_point():
            buffer.mul_(1 + torch.rand_like(buffer) * 0.2)


@torch.no_grad()
def _set_statistics(network: PreTrainedModel) -> None:
    """Batch normalisation by what it sees: else nothing is left of an image behind many layers."""
    norms = [each for each in network.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    if not norms or network.main_input_name != "pixel_values":
        return
    for each in norms:
        each.momentum = None
        each.reset_running_stats()
    size = getattr(network.config, "image_size", None) or 64
    side = size if isinstance(size, int) else size[0]
    network.train()
    network(pixel_values=torch.randn(4, 3, side, side))
    network.eval()


def write_tokenizer(folder: Path, network: PreTrainedModel, *, marks_ends: bool) -> None:
    """Save a tokenizer with a token per character.

    Args:
        folder: of the model.
        network: of the model: its arguments decide whether texts have token types.
        marks_ends: whether texts begin with `<s>` and end with `</s>`.
    """
    letters = [c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c.isascii()]
    pieces = [*_SPECIAL, "Ġ", *letters]
    built = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[],
            unk_token=_SPECIAL[3],
        )
    )
    assert len(pieces) <= VOCABULARY
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    if marks_ends:
        built.post_processor = processors.RobertaProcessing(
            ("</s>", 2), ("<s>", 0), trim_offsets=False, add_prefix_space=False
        )
    names = ["input_ids", "attention_mask"]
    arguments = inspect.signature(network.forward).parameters
    rows: Any = getattr(network.config, "type_vocab_size", 0) or 0
    if "token_type_ids" in arguments and rows >= _TYPE_ROWS:
        names.insert(1, "token_type_ids")
    PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_input_names=names,
        padding_side="left" if network.config.model_type in _PAD_LEFT else "right",
    ).save_pretrained(folder)


def write_image_processor(folder: Path, config: PretrainedConfig, side: int) -> None:
    """Save the image processor of an architecture, with its own defaults but the size."""
    owner = _PROCESSED_AS.get(config.model_type, config.model_type)
    names = IMAGE_PROCESSOR_MAPPING_NAMES[owner]
    kind: Any = getattr(transformers, names["pil"] or names["torchvision"])
    plain = kind()
    size: dict[str, int] = dict(plain.size or {"height": 0, "width": 0})
    fields: dict[str, Any] = {"size": dict.fromkeys(size, side)}
    if getattr(plain, "do_center_crop", None) and plain.crop_size is not None:
        fields["crop_size"] = {"height": side, "width": side}
    kind(**fields).save_pretrained(folder)


def image_processor(folder: Path) -> Any:
    return AutoImageProcessor.from_pretrained(folder)
