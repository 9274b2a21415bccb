"""The schema of ``conf/model/landmark_tiny.yaml``."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.settings.model import Gemma3Settings


@dataclass(kw_only=True)
class LandmarkSettings(Gemma3Settings):
    """Gemma 3 with landmarks in its window layers."""

    model_type: str = "landmark_gemma"
    landmark: int = 2
    stride: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.landmark < self.stride:
            raise ValueError(
                f"model.landmark must lie in [1, model.stride), found {self.landmark} and {self.stride}"
            )
