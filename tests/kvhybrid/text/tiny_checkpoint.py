"""A folder with a tiny random Gemma 3 and a tokenizer trained on one line, as people download them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kvhybrid.models.loading import model_from_config

MAX_LEN = 64


def save_tokenizer(folder: Path, eos_token: str = "<eos>") -> None:
    """A byte-pair encoding of 300 tokens; ``<eos>`` is token 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<eos>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat and the dog sat on the log"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_model(folder: Path, vocab_size: int = 300) -> None:
    config = {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": MAX_LEN,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = model_from_config(config).state_dict()
    save_file(
        {f"model.{name}": weight for name, weight in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
