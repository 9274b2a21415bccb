"""A decoder of transformers behind the contract of a model family."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kvhybrid.models.base import ForwardBatch, HybridModel, LayerCache
from kvhybrid.models.transformers.paged_cache import PagedCache
from kvhybrid.models.transformers.resuming import resumes
from kvhybrid.specs import KVCacheSpec

SpecSource = Callable[[int, str], Mapping[str, KVCacheSpec]]
"""Block size and dtype to the specs of the layers, by the names of `kvhybrid.planning.rules`."""

CACHES = ("cache", "past_key_values", "cache_params")
"""What the argument for a cache is called, and the attribute of the output."""
NO_LIMIT = 1 << 20
"""The maximum length of a model whose config has none, in tokens."""


class TransformersModel(HybridModel):
    """Runs the sequences of a batch one after another through the model's own forward pass.

    If a step has several tokens of a sequence with a state, and the model's code starts such a step from an empty
    state, its tokens are computed one by one; see `kvhybrid.models.transformers.resuming`.
    """

    def __init__(self, model: Any, specs: SpecSource) -> None:
        super().__init__()
        self.model = model.requires_grad_(False).eval()
        config = model.config.get_text_config(decoder=True)
        self.vocab_size = config.vocab_size
        self.max_model_len = getattr(config, "max_position_embeddings", None) or NO_LIMIT
        self.learned_positions = _has_learned_positions(model)
        self.one_by_one = False
        """Whether the tokens of a step that continues from a state are computed one by one."""
        self._model_type = config.model_type
        self._source = specs
        self._specs: Mapping[str, KVCacheSpec] = {}
        self._paged: PagedCache | None = None
        self._accepted = inspect.signature(model.forward).parameters
        self._cache_name = next(name for name in CACHES if name in self._accepted)

    def layer_specs(self, block_size: int, dtype: torch.dtype) -> dict[str, KVCacheSpec]:
        self._specs = self._source(block_size, str(dtype).removeprefix("torch."))
        self.one_by_one = any(spec.state for spec in self._specs.values()) and not resumes(self._model_type)
        return dict(self._specs)

    def bind_cache(self, caches: Mapping[str, LayerCache]) -> None:
        self._paged = PagedCache(self.model, self._template(), self._specs, caches)

    @torch.no_grad()
    def _template(self) -> Any:
        """The cache that the model makes for itself."""
        tokens = torch.zeros(1, 2, dtype=torch.long, device=next(self.model.parameters()).device)
        output = self.model(input_ids=tokens, use_cache=True)
        cache = next((found for name in CACHES if (found := getattr(output, name, None)) is not None), None)
        if cache is None:
            from transformers import DynamicCache

            cache = DynamicCache(config=self.model.config)
            self.model(input_ids=tokens, use_cache=True, **{self._cache_name: cache})
        return cache

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        assert self._paged is not None, "bind_cache comes first"
        rows = batch.logit_rows.tolist()
        logits_RV: list[Tensor] = []
        for sequence, context in enumerate(batch.context_lens):
            row, end_row = batch.query_starts[sequence : sequence + 2]
            step = 1 if context and self.one_by_one else end_row - row
            self._paged.load_states(batch, sequence)
            for at in range(row, end_row, step):
                wanted = [r - at for r in rows if at <= r < at + step]
                logits_RV += self._run(batch, sequence, at, at + step, wanted)
            self._paged.store_states(batch, sequence)
        order = {r: place for place, r in enumerate(sorted(rows))}
        return torch.stack(logits_RV)[[order[r] for r in rows]] if rows else batch.token_ids_T.new_zeros(0)

    def _run(self, batch: ForwardBatch, sequence: int, row: int, end_row: int, wanted: list[int]) -> list[Tensor]:
        """Compute the tokens in the rows of the batch, and return the logits of the ``wanted`` ones."""
        assert self._paged is not None
        start = batch.context_lens[sequence] + row - batch.query_starts[sequence]
        end = start + end_row - row
        self._paged.bind_tokens(batch, sequence, start, end)
        arguments = {
            "attention_mask": torch.ones(1, end, dtype=torch.long, device=batch.token_ids_T.device),
            "position_ids": batch.positions_T[None, row:end_row],
            "logits_to_keep": torch.tensor(wanted or [end_row - row - 1], device=batch.token_ids_T.device),
            self._cache_name: self._paged.cache,
        }
        output = self.model(
            input_ids=batch.token_ids_T[None, row:end_row],
            use_cache=True,
            **{name: value for name, value in arguments.items() if name in self._accepted},
        )
        logits_TV = output.logits[0]
        if "logits_to_keep" in self._accepted:
            return list(logits_TV) if wanted else []
        return [logits_TV[place] for place in wanted]


def _has_learned_positions(model: nn.Module) -> bool:
    return any(
        isinstance(module, nn.Embedding) and ("position" in name or name.rpartition(".")[2] == "wpe")
        for name, module in model.named_modules()
    )
