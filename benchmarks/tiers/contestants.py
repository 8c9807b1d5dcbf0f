"""The ways to a usable network that the project's own environment has, but for its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, T5ForConditionalGeneration

from benchmarks.tiers.models import WEIGHTS, read_file

DD: Final = "reading the file, as dd does"


class Start(StrEnum):
    """Where the bytes are at first."""

    HOST = "host"
    WARM = "disk, in memory"
    COLD = "disk"
    S3 = "S3"


DISK: Final = (Start.WARM, Start.COLD)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to a usable network."""

    name: str
    load: Callable[[], Any]
    """The network, or None where there is none to run."""
    starts: tuple[Start, ...] = DISK
    end: Callable[[], None] = field(default=lambda: None)
    """Called when the network has been used."""
    is_ours: bool = False


def usual_ways(folder: Path) -> list[Contestant]:
    """A plain read, transformers, and safetensors without initialising the network first."""
    return [
        Contestant(DD, lambda: read_file(folder / WEIGHTS)),
        Contestant("transformers from_pretrained", lambda: from_pretrained(folder)),
        Contestant(
            "safetensors load_file, assigned",
            lambda: network_of(folder, load_file(folder / WEIGHTS)),
        ),
    ]


def from_pretrained(folder: Path) -> Any:
    """Transformers' way."""
    return AutoModelForSeq2SeqLM.from_pretrained(folder)


def network_of(folder: Path, tensors: dict[str, torch.Tensor]) -> Any:
    """A network without memory of its own that takes these tensors: the best peers can do."""
    with torch.device("meta"):
        network = T5ForConditionalGeneration(AutoConfig.from_pretrained(folder))
    network.load_state_dict(tensors, strict=False, assign=True)
    network.tie_weights()
    return network.eval()
