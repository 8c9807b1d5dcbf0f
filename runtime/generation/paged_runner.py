"""Steps of transformers' continuous batching whose attention reads the pages where they lie.

In place of its runner of steps: what a step reads is a page table for each kind of layer, not an
index of all cached tokens, which takes longer to make on the host the longer the texts are. Steps
without prompts may be CUDA graphs: then they are padded to powers of 2, and tables to a context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.utils import pad_to_pow2

from runtime.generation.limits import PAGE_TOKENS
from runtime.generation.paged_attention import paged_step, step_tables
from runtime.generation.step_graphs import StepGraphs

if TYPE_CHECKING:
    import torch
    from torch import nn

    from runtime.device.forward_graphs import GraphMaker


@dataclass(frozen=True, slots=True)
class _Graphs:
    steps: StepGraphs
    columns: int
    """Blocks of a whole context."""


def read_in_place(processor: Any, context_tokens: int, graphs: GraphMaker | None = None) -> None:
    """Have a new batch processor's steps read pages where they lie, as graphs if there is a maker.

    Its cache was made for `paged_attention`: without masks, and without transformers' own tables of
    blocks, which only flash attention can read.
    """
    cache, runner = processor.cache, processor.model_runner
    # So the scheduler names steps without prompts. It bounds nothing: no index is made for them.
    cache.max_blocks_per_request = max(each.num_blocks for each in _allocators(cache))
    cache.max_decode_fast_path_length = cache.max_tokens_read
    runner.__class__ = PagedRunner
    columns = -(-context_tokens // PAGE_TOKENS)
    runner.graphs = None if graphs is None else _Graphs(StepGraphs(graphs), columns)


class PagedRunner(ModelRunner):  # type: ignore[misc]  # transformers ships no types here
    """Runs steps with page tables."""

    graphs: _Graphs | None

    def maybe_pad_inputs(
        self, num_q_tokens: int, max_kv_read: int, use_decode_fast_path: bool
    ) -> tuple[int, int]:
        """The queries of the next step with padding, and cached tokens that it gathers."""
        self.pad_inputs = use_decode_fast_path and self.graphs is not None
        if self.pad_inputs:
            num_q_tokens = pad_to_pow2(num_q_tokens, self.cb_config.max_requests_per_batch)
        gathers = not use_decode_fast_path and any(
            hasattr(each, "sliding_window") for each in _allocators(self.cache)
        )
        return num_q_tokens, max_kv_read if gathers else 0

    def compute_batch(self, model: nn.Module, batch_data: dict[str, Any]) -> None:
        self.supports_logits_to_keep(model)  # not to be asked of what takes its place
        if self.graphs is None or not self.pad_inputs:
            super().compute_batch(lambda **inputs: self._forward(model, inputs), batch_data)
        else:
            super().compute_batch(lambda **inputs: self._replay(model, inputs), batch_data)

    def _forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        requests = self.inputs_and_outputs.requests_in_batch
        tables = step_tables(self.cache, requests, inputs["input_ids"].device)
        with paged_step(model, self.cache, tables):
            return model(**inputs)

    def _replay(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """The same as a graph; every input has the shape of its padded number of requests."""
        assert self.graphs is not None  # or steps were not padded
        ids = inputs["input_ids"]
        tables = step_tables(
            self.cache,
            self.inputs_and_outputs.requests_in_batch,
            ids.device,
            padded=ids.shape[1],
            columns=self.graphs.columns,
        )

        # Without prompts no layer gathers.
        whole = {kind: each for kind, each in tables.items() if each is not None}
        changing = {
            kind: {"blocks": each.blocks, "owners": each.owners, "lasts": each.lasts}
            for kind, each in whole.items()
        }

        def work(given: tuple[dict[str, Any], dict[str, Any]]) -> torch.Tensor:
            own = {kind: replace(whole[kind], **each) for kind, each in given[1].items()}
            with paged_step(model, self.cache, own):
                logits: torch.Tensor = model(**given[0]).logits
                return logits

        logits = self.graphs.steps.run(ids.shape[1], work, (inputs, changing))
        return SimpleNamespace(logits=logits)


def _allocators(cache: Any) -> list[Any]:
    """One for each kind of layer."""
    return list(cache.cache_allocators.values())
