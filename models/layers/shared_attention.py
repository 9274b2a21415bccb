"""Self-attention that reads the keys and values of an earlier layer."""

from __future__ import annotations

from torch import Tensor, nn

from kvhybrid.models.backends import attention_backends
from kvhybrid.models.backends.base import AttentionBackend, AttentionNeed
from kvhybrid.models.layers.cached import SharingLayer
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation, rotate


class SharedAttention(SharingLayer):
    """Only has queries; keys and values are those of the layer called ``source``, which runs before it.

    ``need`` must have ``shared_cache`` and the visibility, key/value heads and head size of the source.
    """

    backend: AttentionBackend

    def __init__(
        self,
        need: AttentionNeed,
        width: int,
        *,
        source: str,
        backend: str,
        bias: bool = False,
        q_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.source = source
        self.need = need
        self.backend = attention_backends.find(backend)(need)
        self.q_proj = nn.Linear(width, need.num_heads * need.head_size, bias=bias)
        self.o_proj = nn.Linear(need.num_heads * need.head_size, width, bias=bias)
        self.q_norm = q_norm

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation | None = None) -> Tensor:
        q_THD = self.q_proj(x_TM).view(len(x_TM), -1, self.need.head_size)
        if self.q_norm is not None:
            q_THD = self.q_norm(q_THD)
        if rotation is not None:
            q_THD = rotate(q_THD, rotation)
        read_THD = self.backend.read(q_THD, self.cache, plans.plan(self.source, self.backend))
        out_TM: Tensor = self.o_proj(read_THD.flatten(1))
        return out_TM
