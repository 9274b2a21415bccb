"""The learned augmented residual layer (LAuReL, arXiv:2411.07501), in its low-rank form."""

from __future__ import annotations

from torch import Tensor, nn

from kvhybrid.models.layers.norm import WideRMSNorm


class Laurel(nn.Module):
    """``x + norm(right(left(x)))``: a low-rank path parallel to attention."""

    def __init__(self, width: int, rank: int, eps: float) -> None:
        super().__init__()
        self.linear_left = nn.Linear(width, rank, bias=False)
        self.linear_right = nn.Linear(rank, width, bias=False)
        self.post_laurel_norm = WideRMSNorm(width, eps)

    def forward(self, x_TM: Tensor) -> Tensor:
        out_TM: Tensor = x_TM + self.post_laurel_norm(self.linear_right(self.linear_left(x_TM)))
        return out_TM
