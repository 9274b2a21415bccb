"""Quality of the model's predictions with the run's cache, in bits per byte of a text.

A spec that keeps less than the model was trained with saves memory but raises the bits per byte; the summary has
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log
from typing import TYPE_CHECKING

from kvhybrid.files import MOST_BYTES, UnreadableError, read_bytes
from kvhybrid.settings.values import at_least
from kvhybrid.text.corpus import held_out_text

if TYPE_CHECKING:
    from torch import Tensor

    from kvhybrid.engine.engine import Engine
    from kvhybrid.scheduling.base import SchedulerOutput
    from kvhybrid.text.codec import TextCodec


@dataclass(kw_only=True)
class QualitySettings:
    """A text whose bits per byte are measured."""

    path: str | None = None
    """A text file in UTF-8; by default, the held-out part of the standard library's source."""
    bytes: int = 4096
    """Bytes of the text to measure, in excerpts spread evenly over it; 0 turns the measurement off."""
    excerpt_bytes: int = 256

    def __post_init__(self) -> None:
        at_least("quality.bytes", self.bytes, 0, MOST_BYTES)
        at_least("quality.excerpt_bytes", self.excerpt_bytes, 2)
        if self.bytes == 1:
            raise ValueError("quality.bytes must be 0 or at least 2, found 1: a first byte is not predicted")

    @property
    def longest_request(self) -> int:
        """Tokens of the longest excerpt: at most one per byte, plus a start and an end token."""
        return self.excerpt_bytes + 2

    def texts(self) -> list[str]:
        """The excerpts. Raises ValueError for a file that cannot be read or has fewer than two bytes."""
        try:
            text = held_out_text() if self.path is None else read_bytes(self.path)
        except UnreadableError as error:
            raise ValueError(
                f"quality.path: {self.path}: cannot be read: {error}; accepted: a text file in UTF-8"
            ) from error
        if len(text) < 2:
            raise ValueError(f"quality.path: {self.path}: {len(text)} bytes, too few to predict one from another")
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"quality.path: {self.path}: no UTF-8 at byte {error.start}") from error
        return excerpts(text, self.bytes, self.excerpt_bytes)


@dataclass(frozen=True)
class Quality:
    """How well a text was predicted."""

    bits: float
    """Sum over all predicted tokens."""
    predicted_tokens: int
    tokens: int
    """All tokens, including the first of each excerpt, which is given and not predicted."""
    bytes: int
    """Bytes of the text."""

    @property
    def bits_per_byte(self) -> float:
        """Bits per token times tokens per byte, which is comparable between tokenizers."""
        return self.bits / self.predicted_tokens * self.tokens / self.bytes

    def metrics(self) -> dict[str, float]:
        """The metrics for trackers."""
        return {"quality/bits_per_byte": self.bits_per_byte, "quality/bytes": self.bytes}


def excerpts(text: bytes, num_bytes: int, length: int) -> list[str]:
    """``num_bytes`` of ``text`` in evenly spread excerpts of ``length`` bytes; the whole text if it is shorter.

    A character that the end of an excerpt would split is omitted, and so is a last excerpt of a single byte.
    """
    num_bytes = min(num_bytes, len(text))
    num_bytes -= num_bytes % length == 1
    count = -(-num_bytes // length)
    lengths = [length] * (count - 1) + [num_bytes - length * (count - 1)]
    last = len(text) - lengths[-1]
    begins = [last * index // max(count - 1, 1) for index in range(count)]
    return [
        text[begin : begin + size].decode("utf-8", errors="ignore")
        for begin, size in zip(begins, lengths, strict=True)
    ]


def measure(engine: Engine, codec: TextCodec, texts: Sequence[str]) -> Quality:
    """Predict every token of ``texts`` from the earlier tokens of the same text, with the engine's model, kernels,
    specs, pool and prefill chunks.

    A separate cache manager allocates the engine's blocks, so the engine must be idle and without cached blocks:
    call this before the first request. The engine's statistics do not change. Raises ValueError for a text that is
    longer than ``max_model_len``, has fewer than two tokens or a token outside of the vocabulary, and for logits
    that are not finite.
    """
    prompts = [_encoded(codec, text) for text in texts]
    highest, last = max((token for prompt in prompts for token in prompt), default=0), engine.model.vocab_size - 1
    if highest > last:
        raise ValueError(f"quality: the tokenizer gives token id {highest}, but the model's end at {last}")
    nats = sum(_nats(engine, prompts))
    if not isfinite(nats):
        raise ValueError(
            "quality: the model's logits are not finite (NaN or infinite); quality=none skips the measurement"
        )
    # A start token that the codec puts before a prompt is not part of the text.
    marks = sum(codec.decode(prompt[:1]) == "" for prompt in prompts)
    tokens = sum(map(len, prompts))
    return Quality(
        bits=nats / log(2),
        predicted_tokens=tokens - len(prompts),
        tokens=tokens - marks,
        bytes=sum(len(text.encode("utf-8")) for text in texts),
    )


def _encoded(codec: TextCodec, text: str) -> list[int]:
    """The tokens of ``text``, without an end token: the end need not be predicted."""
    tokens = codec.encode(text)
    return tokens[:-1] if tokens and codec.decode(tokens[-1:]) == "" else tokens


def _nats(engine: Engine, prompts: Sequence[Sequence[int]]) -> Iterator[float]:
    """The cross-entropy of each step's predictions, in nats."""
    import torch

    from kvhybrid.cache.manager import KVCacheManager
    from kvhybrid.cache.request import Request
    from kvhybrid.engine.batch import build_batch
    from kvhybrid.scheduling.scheduler import Scheduler

    cache = KVCacheManager(
        engine.plan.config,
        max_model_len=engine.plan.max_model_len,
        max_in_flight_tokens=engine.scheduler.max_batched_tokens,
        enable_caching=False,  # cached tokens have no logits
    )
    scheduler = Scheduler(
        cache,
        max_batched_tokens=engine.scheduler.max_batched_tokens,
        max_num_seqs=engine.scheduler.max_num_seqs,
    )
    for index, prompt in enumerate(prompts):
        if len(prompt) < 2:
            raise ValueError(
                f"quality.excerpt_bytes: an excerpt has {len(prompt)} tokens, too few to predict one from another"
            )
        scheduler.add_request(Request(f"excerpt{index}", prompt, max_new_tokens=1, hasher=cache.hasher))
    with torch.inference_mode():
        while scheduler.has_unfinished:
            output = scheduler.schedule()
            for kind, pairs in enumerate(cache.coordinator.groups.copies_by_pool()):
                engine.pool.copy_blocks(pairs, kind)
            batch = build_batch(output.scheduled, cache, engine.device)
            every_row = torch.arange(len(batch.token_ids_T), device=engine.device)
            logits_TV = engine.model(replace(batch, logit_rows=every_row))
            yield _cost(logits_TV, output)
            scheduler.update_from_output(
                output, {item.request.request_id: 0 for item in output.scheduled if item.samples}
            )


def _cost(logits_TV: Tensor, output: SchedulerOutput) -> float:
    """Cross-entropy, in nats, of the tokens that follow the scheduled ones in their prompts."""
    import torch
    from torch.nn.functional import cross_entropy

    start = 0
    rows: list[int] = []
    followers: list[int] = []
    for item in output.scheduled:
        tokens = item.request.token_ids[item.start + 1 : item.start + item.num_tokens + 1]
        rows += range(start, start + len(tokens))
        followers += tokens
        start += item.num_tokens
    if not rows:
        return 0.0
    target = torch.tensor(followers, device=logits_TV.device)
    return cross_entropy(logits_TV[rows].float(), target, reduction="none").double().sum().item()
