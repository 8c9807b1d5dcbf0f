"""The architectures that transformers lists for each task of a pod."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pytest
from _pytest.mark import ParameterSet
from transformers.models.auto import modeling_auto as auto

from registry.domain.model import Task


@dataclass(frozen=True, slots=True)
class Architecture:
    """One kind of network for one task."""

    task: Task
    kind: str
    """Its `model_type`."""
    class_name: str
    is_popular: bool

    @property
    def names(self) -> tuple[str, str]:
        """What a refusal may call it."""
        return self.kind, self.class_name


_CLASSES: Final[Mapping[Task, Mapping[str, str | tuple[str, ...]]]] = {
    Task.TEXT_GENERATION: auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    Task.TEXT_TO_TEXT: auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    Task.TEXT_CLASSIFICATION: auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    Task.TOKEN_CLASSIFICATION: auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    Task.FILL_MASK: auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    Task.IMAGE_CLASSIFICATION: auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    Task.TEXT_EMBEDDING: {
        kind: auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.get(kind) or auto.MODEL_MAPPING_NAMES[kind]
        for kind in sorted(
            {
                *auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
                *auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
                *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"),
            }
            - {"llama4", "mllama", "t5gemma"}  # their encoders have other configurations
        )
    },
}
_POPULAR: Final[Mapping[Task, str]] = {
    Task.TEXT_GENERATION: "bloom codegen falcon gemma gemma2 gemma3_text gpt2 gpt_bigcode gpt_neo"
    " gpt_neox gpt_oss gptj llama mamba mistral mixtral mpt olmo2 opt phi phi3 qwen2 qwen2_moe"
    " qwen3 qwen3_moe smollm3 stablelm starcoder2",
    Task.TEXT_TO_TEXT: "bart blenderbot fsmt led longt5 marian mbart mt5 pegasus t5",
    Task.TEXT_CLASSIFICATION: "albert bert deberta deberta-v2 distilbert electra gemma3 gpt2 llama"
    " modernbert mpnet qwen2 roberta xlm-roberta xlnet",
    Task.TOKEN_CLASSIFICATION: "bert deberta-v2 distilbert electra modernbert roberta xlm-roberta"
    " xlnet",
    Task.FILL_MASK: "albert bert distilbert modernbert roberta xlm-roberta",
    Task.IMAGE_CLASSIFICATION: "beit convnext deit dinov2 mobilenet_v2 resnet segformer swin vit",
    Task.TEXT_EMBEDDING: "bert distilbert jina_embeddings_v3 modernbert mpnet nomic_bert qwen3"
    " roberta xlm-roberta",
}
"""Those of the most used checkpoints: the half of the suite that `make test-slow` runs, too."""
NOT_MADE: Final = frozenset(
    {
        *("dinat", "gemma3n", "layoutlmv2", "timm_wrapper"),  # need libraries of their own
        *(
            "blt",
            "cohere_compass_text",
            "dbrx",
            "emu3",
            "prophetnet",
        ),  # not made from their own configurations
        *("gemma4_assistant", "gemma4_unified_assistant"),  # drafts for another network
        *("bros", "perceiver", "shieldgemma2"),  # take more than texts or one image
        "dots3_note_text",  # larger than the suite's pod, however small its fields
        "funnel",  # transformers itself fails for the shortest texts
        *("hgnet_v2", "pp_lcnet"),  # have no image processor without torchvision
        "imagegpt",  # a pixel is a token: more of them than small networks have positions for
        "siglip2",  # arrays of its images vary in shape: refused
        # Take or make sounds:
        *("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus"),
        *("moss_transcribe_diarize", "moshi", "musicflamingo", "musicgen", "musicgen_melody"),
        *("nemo_speechlm", "qwen2_audio", "qwen3_asr", "seamless_m4t", "seamless_m4t_v2"),
        *("vibevoice_asr", "voxtral", "voxtral_realtime", "whisper"),
    }
)
"""Architectures that are left out, by `model_type`."""


def architectures() -> list[ParameterSet]:
    """Parameters of a test: all architectures of all tasks, the popular ones marked slow, too."""
    found = []
    for task, of_task in _CLASSES.items():
        popular = set(_POPULAR[task].split())
        assert popular <= set(of_task), popular - set(of_task)
        for kind, classes in of_task.items():
            name = classes if isinstance(classes, str) else classes[0]
            if kind in NOT_MADE or _is_of_text_part(of_task, kind, name):
                continue
            marks = [pytest.mark.reference, *([pytest.mark.slow] if kind in popular else [])]
            each = Architecture(task, kind, name, kind in popular)
            found.append(pytest.param(each, id=f"{task.value}-{kind}", marks=marks))
    return found


def _is_of_text_part(
    classes: Mapping[str, str | tuple[str, ...]], kind: str, class_name: str
) -> bool:
    """Whether the network is that of this architecture's text part, which is listed, too."""
    return any(
        other != kind and other.startswith(f"{kind}_text") and name == class_name
        for other, name in classes.items()
    )
