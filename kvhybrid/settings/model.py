"""The part of the schema for models: checkpoints, and small models with random weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kvhybrid.settings.model_config import read_model_config
from kvhybrid.settings.values import MISSING, MOST, MOST_SEED, at_least

if TYPE_CHECKING:
    from kvhybrid.models.base import BackendChoice, HybridModel
    from kvhybrid.text.codec import TextCodec

DTYPES = ("float32", "bfloat16", "float16")
MOST_THREADS = 1024


@dataclass(kw_only=True)
class ModelSettings(ABC):
    """A model to run; the fields are the keys of ``conf/model/<name>.yaml``."""

    dtype: str = "float32"
    cpu_threads: int | None = None
    """Torch threads on the CPU; None: torch's default."""

    is_trained: ClassVar[bool] = True
    """Whether the model is trained, so that measuring its quality makes sense."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"model.dtype must be one of {', '.join(DTYPES)}, found {self.dtype!r}")
        if self.cpu_threads is not None:
            at_least("model.cpu_threads", self.cpu_threads, 1, MOST_THREADS)

    @property
    def reads_text(self) -> bool:
        """Whether the model has a text codec."""
        return True

    @abstractmethod
    def build(self, backends: BackendChoice | None = None) -> HybridModel:
        """Create the model with its weights in `dtype`, with torch backends by default.

        Raises ValueError or OSError if the weights cannot be loaded or a backend does not support the model.
        """

    def config_json(self) -> Mapping[str, Any]:
        """The content of a ``config.json`` that describes the model, for `kvhybrid plan`."""
        raise ValueError(
            f"model: {type(self).__name__} has no config to plan from; accepted: model.path=CONFIG_JSON"
        )

    def text_codec(self) -> TextCodec:
        """The model's text codec. Raises ValueError if it has none."""
        raise ValueError(f"model: {type(self).__name__} has no tokenizer; accepted for prompts: model=hf")


@dataclass(kw_only=True)
class FolderSettings(ModelSettings):
    """A Hugging Face checkpoint folder: ``config.json`` and safetensors."""

    dtype: str = "bfloat16"
    path: str = MISSING
    """The folder, or the name of trained weights that come with the package."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.folder / "config.json").is_file():
            found = "a folder without one" if Path(self.path).is_dir() else "no such folder"
            raise ValueError(f"model.path must be a folder with config.json, found {found}: {self.path}")

    def config_json(self) -> Mapping[str, Any]:
        return read_model_config("model.path", str(self.folder))

    @property
    def folder(self) -> Path:
        """The checkpoint folder."""
        from kvhybrid.models import weights

        folder = Path(self.path)
        ours = not folder.exists() and self.path in weights.names()
        return weights.folder_of(self.path) if ours else folder

    def text_codec(self) -> TextCodec:
        """The tokenizer in the folder, or bytes if it has none and the config has 256 token ids."""
        from kvhybrid.text.codec import codec_of

        return codec_of(self.folder, self._vocab_size())

    @property
    def reads_text(self) -> bool:
        from kvhybrid.text.codec import ByteCodec, has_tokenizer

        return has_tokenizer(self.folder) or self._vocab_size() == ByteCodec.vocab_size

    def _vocab_size(self) -> Any:
        from kvhybrid.models.checkpoint import read_vocab_size

        return read_vocab_size(self.folder)


@dataclass(kw_only=True)
class CheckpointSettings(FolderSettings):
    """A checkpoint that a family of ours runs, or else transformers."""

    window: int | None = None
    """Tokens that a window layer attends to, the token itself included; None: the checkpoint's own."""
    sinks: int = 0
    """First tokens of a request that window layers attend to in addition."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None:
            at_least("model.window", self.window, 1)
        at_least("model.sinks", self.sinks, 0)

    def build(self, backends: BackendChoice | None = None) -> HybridModel:
        import torch

        from kvhybrid.checkpoints import load_checkpoint
        from kvhybrid.models.windows import change_windows

        model = load_checkpoint(self.folder, getattr(torch, self.dtype), backends)
        if self.window is not None or self.sinks:
            change_windows(model, self.window, self.sinks)
        return model

    def text_codec(self) -> TextCodec:
        from kvhybrid.checkpoints import needs_transformers
        from kvhybrid.models.checkpoint import read_config
        from kvhybrid.models.loading import check_config

        # Loading a tokenizer also reads the config, whose errors should not be reported as the tokenizer's.
        if not needs_transformers(read_config(self.folder)):
            check_config(self.folder)
        return super().text_codec()


@dataclass(kw_only=True)
class TransformersSettings(FolderSettings):
    """A checkpoint of any decoder of transformers, run with its code and our cache."""

    def build(self, backends: BackendChoice | None = None) -> HybridModel:
        import torch

        from kvhybrid.checkpoints import load_with_transformers

        return load_with_transformers(self.folder, getattr(torch, self.dtype), backends)


@dataclass(kw_only=True)
class ConfigSettings(ModelSettings):
    """A model without weights: the config of any decoder that transformers knows."""

    dtype: str = "auto"
    """Of the weights; auto: what the config says."""
    path: str | None = None
    """A ``config.json``, its folder, or the name of a preset."""
    config: dict[str, Any] = field(default_factory=dict)
    """Keys of the config. They take precedence over those at ``path``."""

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", *DTYPES):
            raise ValueError(f"model.dtype must be auto or one of {', '.join(DTYPES)}, found {self.dtype!r}")
        if self.path is None and not self.config:
            raise ValueError("model.path is missing: give model=PRESET, or model.path=CONFIG_JSON_OR_FOLDER")

    def config_json(self) -> Mapping[str, Any]:
        return {**(read_model_config("model.path", self.path) if self.path else {}), **self.config}

    def build(self, backends: BackendChoice | None = None) -> HybridModel:
        raise ValueError("model: a config has no weights to run; accepted: model=hf model.path=FOLDER")


@dataclass(kw_only=True)
class RandomModelSettings(ModelSettings):
    """A model with random weights from ``seed``. The other fields are keys of the family's Hugging Face config."""

    model_type: str
    cpu_threads: int | None = 1
    seed: int = 0
    vocab_size: int = 384
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 2048

    is_trained: ClassVar[bool] = False
    lowest: ClassVar[Mapping[str, int]] = {
        "seed": 0,
        "attn_scale": 0,
        "attn_layer_indices": 0,
        "num_kv_shared_layers": 0,
        "attn_layer_offset": 0,
        "expert_layer_offset": 0,
        "linear_conv_kernel_dim": 2,
        "mamba_d_conv": 2,
    }
    """Minimum values of keys for which it is not 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in fields(self):
            value = getattr(self, key.name)
            for number in value if isinstance(value, list) else [value]:
                if type(number) in (int, float):
                    least = self.lowest.get(key.name, 1 if type(number) is int else -MOST)
                    at_least(f"model.{key.name}", number, least, MOST_SEED if key.name == "seed" else MOST)
        experts = getattr(self, "num_experts", getattr(self, "num_local_experts", None))
        chosen = getattr(self, "num_experts_per_tok", 0)
        if experts is not None and chosen > experts:
            raise ValueError(f"model.num_experts_per_tok must be at most the {experts} experts, found {chosen}")

    def config_json(self) -> Mapping[str, Any]:
        return {**self.config(), "dtype": self.dtype}

    def config(self) -> dict[str, Any]:
        """The keys of ``config.json``."""
        ours = {"seed", *(field.name for field in fields(ModelSettings))}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ours}

    def build(self, backends: BackendChoice | None = None) -> HybridModel:
        import torch

        from kvhybrid.models.loading import model_from_config

        dtype = getattr(torch, self.dtype)
        return model_from_config(self.config(), seed=self.seed, dtype=dtype, backends=backends)

    def text_codec(self) -> TextCodec:
        """Bytes. Completions of an untrained model are noise, including token ids above 255."""
        from kvhybrid.text.codec import ByteCodec

        if self.vocab_size < ByteCodec.vocab_size:
            raise ValueError(f"model.vocab_size must be at least {ByteCodec.vocab_size} for text prompts")
        return ByteCodec()


@dataclass(kw_only=True)
class Gemma3Settings(RandomModelSettings):
    """Gemma 3, text only: ``sliding_window_pattern - 1`` window layers, then a full one, repeated."""

    model_type: str = "gemma3_text"
    num_hidden_layers: int = 7
    head_dim: int = 16
    query_pre_attn_scalar: int = 16
    sliding_window: int = 32
    sliding_window_pattern: int = 6


@dataclass(kw_only=True)
class Gemma3nSettings(RandomModelSettings):
    """Gemma 3n, text only: four window layers, then a full one, repeated. The last ``num_kv_shared_layers`` have
    no cache and read that of an earlier layer of their type."""

    model_type: str = "gemma3n_text"
    vocab_size_per_layer_input: int = 384
    hidden_size_per_layer_input: int = 16
    num_hidden_layers: int = 10
    num_kv_shared_layers: int = 5
    head_dim: int = 16
    sliding_window: int = 32
    altup_num_inputs: int = 4
    laurel_rank: int = 16


@dataclass(kw_only=True)
class JambaSettings(RandomModelSettings):
    """Jamba: Mamba layers and some full-attention layers, with a mixture of experts in every other layer."""

    model_type: str = "jamba"
    num_hidden_layers: int = 8
    attn_layer_period: int = 8
    attn_layer_offset: int = 4
    expert_layer_period: int = 2
    expert_layer_offset: int = 1
    num_experts: int = 4
    num_experts_per_tok: int = 2
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_dt_rank: int = 4


@dataclass(kw_only=True)
class BambaSettings(RandomModelSettings):
    """Bamba: Mamba-2 layers, and full attention in the layers ``attn_layer_indices``."""

    model_type: str = "bamba"
    num_hidden_layers: int = 8
    attn_layer_indices: list[int] = field(default_factory=lambda: [3, 7])
    mamba_n_heads: int = 8
    mamba_n_groups: int = 1
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2


@dataclass(kw_only=True)
class Llama4Settings(RandomModelSettings):
    """Llama 4, text only: ``no_rope_layer_interval - 1`` layers of chunks, then a full one, repeated."""

    model_type: str = "llama4_text"
    intermediate_size: int = 64
    num_hidden_layers: int = 8
    head_dim: int = 16
    attention_chunk_size: int = 32
    no_rope_layer_interval: int = 4
    floor_scale: int = 32
    attn_scale: float = 0.1
    intermediate_size_mlp: int = 128
    interleave_moe_layer_step: int = 2
    num_local_experts: int = 4
    num_experts_per_tok: int = 1


@dataclass(kw_only=True)
class GptOssSettings(RandomModelSettings):
    """gpt-oss: alternating window and full-attention layers, with a mixture of experts in each."""

    model_type: str = "gpt_oss"
    intermediate_size: int = 64
    head_dim: int = 16
    sliding_window: int = 32
    num_local_experts: int = 4
    num_experts_per_tok: int = 2


@dataclass(kw_only=True)
class Qwen3NextSettings(RandomModelSettings):
    """Qwen3-Next: ``full_attention_interval - 1`` gated delta nets, then a full-attention layer, repeated, with a
    mixture of experts in each."""

    model_type: str = "qwen3_next"
    num_hidden_layers: int = 8
    head_dim: int = 16
    full_attention_interval: int = 4
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 16
    linear_value_head_dim: int = 16
    linear_conv_kernel_dim: int = 4
    num_experts: int = 4
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
