"""A network's own generation, step by step: what transformers' `generate` prepares and computes.

`generate` itself runs until the last token. Here its preparations and its loop are a Python
generator, so that each step can be a job of the device. Runs in the device's thread.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig

from runtime.generation.engine import SamplingDefaults

if TYPE_CHECKING:
    from transformers import LogitsProcessorList, PreTrainedModel

    ScoreSteps = Generator[torch.Tensor, torch.Tensor, None]
    """Scores of the next token of each row, in 32 bits; takes the tokens that are chosen."""

Scores = list[list[torch.Tensor]]
"""By text, then by new token: of the whole vocabulary, in 32 bits."""

_OWN = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": None,
    "min_new_tokens": None,
    "stop_strings": None,
    "cache_implementation": None,
    "use_cache": True,
    "prompt_lookup_num_tokens": None,
    "penalty_alpha": None,
    "token_healing": False,
    "output_scores": False,
    "output_logits": False,
    "return_dict_in_generate": False,
    "max_time": None,
    "prefill_chunk_size": None,
    "watermarking_config": None,
}
"""Of generation_config.json: what `Sampling` decides, and loops of other kinds."""


def score_steps(
    network: PreTrainedModel,
    ids: torch.Tensor,
    config: GenerationConfig,
    *,
    max_tokens: int,
    mask: torch.Tensor | None = None,
) -> ScoreSteps:
    """Steps of texts of shape (rows, tokens); `mask` is 0 where they are padded."""
    config = copy.copy(config)
    config.max_new_tokens, config.max_length = max_tokens, None
    mask = torch.ones_like(ids) if mask is None else mask
    with _configured(network, config):
        steps: ScoreSteps = network.generate(
            ids, attention_mask=mask, generation_config=config, custom_generate=_steps
        )
    return steps


def _steps(
    network: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> ScoreSteps:
    """In place of transformers' `_sample`, whose loop this is."""
    del stopping_criteria  # the caller stops
    is_encoder_decoder = network.config.is_encoder_decoder
    outputs = network._prefill(input_ids, generation_config, inputs)
    while True:
        inputs = network._update_model_kwargs_for_generation(
            outputs, inputs, is_encoder_decoder=is_encoder_decoder
        )
        scores = logits_processor(input_ids, outputs.logits[:, -1].float())
        del outputs
        tokens = yield scores
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
        prepared = network.prepare_inputs_for_generation(
            input_ids, next_sequence_length=1 if inputs["use_cache"] else None, **inputs
        )
        outputs = network(**prepared, return_dict=True)


@contextmanager
def _configured(network: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """In the block the network has no other defaults: `generate` fills in what is not set."""
    before = network.generation_config
    network.generation_config = config
    try:
        yield
    finally:
        network.generation_config = before


def request_config(network: PreTrainedModel, end_ids: Sequence[int]) -> GenerationConfig:
    """The model's generation_config.json without what the sampling of each request decides."""
    config = copy.deepcopy(network.generation_config)
    for name, value in _OWN.items():
        setattr(config, name, value)
    config.eos_token_id = list(end_ids) or None
    if config.pad_token_id is None:
        config.pad_token_id = 0  # else `generate` warns; a single text has no padding
    return config


def trial_config(network: PreTrainedModel) -> GenerationConfig:
    """What decides nothing but how a text begins."""
    known = network.generation_config
    return GenerationConfig(
        do_sample=False,
        bos_token_id=known.bos_token_id,
        pad_token_id=known.pad_token_id or 0,
        decoder_start_token_id=known.decoder_start_token_id,
        use_cache=True,
    )


def score_processors(
    network: PreTrainedModel, config: GenerationConfig, prompt_tokens: int
) -> LogitsProcessorList:
    """Those of transformers that a request's configuration asks for, such as banned words."""
    config = copy.copy(config)
    network._prepare_special_tokens(config, True, device=network.device)
    processors: LogitsProcessorList = network._get_logits_processor(
        config, input_ids_seq_length=prompt_tokens, device=network.device
    )
    return processors


def sampling_defaults(network: PreTrainedModel) -> SamplingDefaults:
    """As vLLM reads generation_config.json: `do_sample` decides nothing in OpenAI's protocol."""
    config = network.generation_config
    strings = config.stop_strings or ()
    return SamplingDefaults(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        min_tokens=config.min_new_tokens,
        stops=(strings,) if isinstance(strings, str) else tuple(strings),
    )
