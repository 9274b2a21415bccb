"""Tokenization: the tokenizer of a model folder, or plain bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvhybrid.errors import one_line

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""A folder with one of these files has a tokenizer."""


class TextCodec(ABC):
    """Converts text to token ids and back."""

    end_token_ids: frozenset[int] = frozenset()
    """The tokens that end a text."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The token ids of ``text``, including a start token if the model expects one."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``."""


class ByteCodec(TextCodec):
    """A token is a byte of the text in UTF-8: 256 token ids and no files."""

    vocab_size = 256

    def __init__(self, end_token_ids: frozenset[int] = frozenset()) -> None:
        self.end_token_ids = end_token_ids

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Invalid UTF-8 and ids above 255 become U+FFFD."""
        return bytes(min(token, 0xFF) for token in token_ids).decode("utf-8", errors="replace")


class TokenizerCodec(TextCodec):
    """The tokenizer of a Hugging Face model folder. Nothing is downloaded, and no code in the folder is run."""

    def __init__(self, folder: Path | str) -> None:
        """End tokens come from the folder's configs, or else from the tokenizer.

        Raises ValueError if transformers cannot read a tokenizer from ``folder`` without running code in it, if
        the tokenizer has no vocabulary, and for a FIFO or a device in ``folder``, which may never end.
        """
        from transformers import AutoTokenizer

        from kvhybrid.models.checkpoint import read_end_tokens

        for entry in sorted(Path(folder).iterdir()):
            if entry.exists() and not (entry.is_file() or entry.is_dir()):
                raise ValueError(f"{entry}: cannot be read: it is not a regular file")
        named = read_end_tokens(Path(folder))
        self._folder = folder
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # each type of tokenizer raises its own exceptions
            raise ValueError(f"{folder}: the tokenizer cannot be read: {one_line(error)}") from error
        if {*self._tokenizer.get_vocab().values()} <= {*self._tokenizer.all_special_ids}:
            raise ValueError(f"{folder}: the tokenizer has no vocabulary: every text would give the same tokens")
        own = self._tokenizer.eos_token_id
        self.end_token_ids = named or frozenset(() if own is None else (own,))

    def encode(self, text: str) -> list[int]:
        """Raises ValueError if the tokenizer fails, e.g. because it has no unknown token."""
        try:
            token_ids: list[int] = self._tokenizer.encode(text)
        except Exception as error:
            raise ValueError(f"{self._folder}: the tokenizer cannot read a text: {one_line(error)}") from error
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Skips special tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text


def has_tokenizer(folder: Path | str) -> bool:
    """Whether ``folder`` has a tokenizer."""
    return any((Path(folder) / name).is_file() for name in TOKENIZER_FILES)


def codec_of(folder: Path | str, vocab_size: int | None) -> TextCodec:
    """The codec of the model in ``folder``: its tokenizer, or bytes if it has none and 256 token ids.

    Raises ValueError if it has neither.
    """
    if has_tokenizer(folder):
        return TokenizerCodec(folder)
    if vocab_size == ByteCodec.vocab_size:
        from kvhybrid.models.checkpoint import read_end_tokens

        return ByteCodec(read_end_tokens(Path(folder)))
    raise ValueError(
        f"{folder}: no tokenizer; accepted for prompts: a folder with {', '.join(TOKENIZER_FILES[:-1])} or "
        f"{TOKENIZER_FILES[-1]}, or a model of {ByteCodec.vocab_size} token ids, which are bytes"
    )
