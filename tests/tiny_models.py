"""Tiny models of all kinds with random weights: also an exported program, and Stable Diffusion.

The same name gives the same weights each time.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizerFast

from pilotlight.sample_models import make_model as published
from research.experiments.sneakpeek.program_file import FEATURES, export

CLASSES = 3
HIDDEN = 16


class RowClassifier(torch.nn.Module):
    """Class scores and the best class of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, CLASSES)
        )

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """`scores` [rows, 3] and `label` [rows] for `features` [rows, 4]."""
        scores = self.layers(features).softmax(dim=-1)
        return {"scores": scores, "label": scores.argmax(dim=-1)}


def write_program(name: str, path: Path) -> None:
    """Write the program to `path` (`.pt2`); `name` seeds its weights."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])
    network = RowClassifier().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(network.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    export(network, path)


CONTEXT = 16
WIDTH = 32
START, END = "<|startoftext|>", "<|endoftext|>"
SCHEDULE = {
    "_class_name": "DDIMScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
}
UNET: dict[str, Any] = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [16, 32],
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "attention_head_dim": 8,
    "cross_attention_dim": WIDTH,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
}
VAE: dict[str, Any] = {
    "_class_name": "AutoencoderKL",
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "block_out_channels": [16, 32],
    "norm_num_groups": 8,
    "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D"],
    "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"],
    "sample_size": 32,
}


def write_pipeline(name: str, folder: Path) -> None:
    """Write a pipeline to `folder`; `name` seeds its weights."""
    from diffusers import AutoencoderKL, UNet2DConditionModel

    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])
    end = _write_tokenizer(folder / "tokenizer")
    config = CLIPTextConfig(
        vocab_size=end + 1,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        bos_token_id=end - 1,
        eos_token_id=end,
        pad_token_id=end,
        architectures=["CLIPTextModel"],
    )
    config.dtype = "float32"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = CLIPTextModel(config)
        unet, vae = UNet2DConditionModel.from_config(UNET), AutoencoderKL.from_config(VAE)
    (folder / "text_encoder").mkdir()
    config.save_pretrained(folder / "text_encoder")
    published = {f"text_model.{name}": each for name, each in encoder.state_dict().items()}
    save_file(published, folder / "text_encoder" / "model.safetensors", {"format": "pt"})
    for part, network, fields in (("unet", unet, UNET), ("vae", vae, VAE)):
        _write_json(folder / part / "config.json", fields)
        weights = {key: value.contiguous() for key, value in network.state_dict().items()}
        path = folder / part / "diffusion_pytorch_model.safetensors"
        save_file(weights, path, {"format": "pt"})
    _write_json(folder / "scheduler" / "scheduler_config.json", SCHEDULE)
    _write_json(
        folder / "model_index.json",
        {
            "_class_name": "StableDiffusionPipeline",
            "feature_extractor": [None, None],
            "safety_checker": [None, None],
            "scheduler": ["diffusers", "DDIMScheduler"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"],
        },
    )


def _write_tokenizer(folder: Path) -> int:
    """Write a byte-level tokenizer; returns its last token, which ends a prompt."""
    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), START, END]
    numbered = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = CLIPTokenizerFast(
        vocab=numbered, merges=[], bos_token=START, eos_token=END, unk_token=END, pad_token=END
    )
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(folder)
    return numbered[END]


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields, indent=2) + "\n")


def make_model(name: str, folder: Path) -> Path:
    """Write `tiny-program`, `tiny-diffusion`, or a model that `make-model` takes, to `folder`."""
    if name == "tiny-program":
        folder.mkdir(parents=True, exist_ok=True)
        write_program(name, folder / "model.pt2")
    elif name == "tiny-diffusion":
        folder.mkdir(parents=True, exist_ok=True)
        write_pipeline(name, folder)
    else:
        published.make_model(name, folder)
    return folder
