"""Quality: bits per byte through the engine's own pages, and what a lossy cache costs."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log2
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from kvhybrid.engine.engine import Engine
from kvhybrid.engine.quality import Quality, QualitySettings, excerpts, measure
from kvhybrid.errors import InputError
from kvhybrid.models import weights
from kvhybrid.models.loading import load_model
from kvhybrid.models.windows import change_windows
from kvhybrid.sessions.run import run
from kvhybrid.sessions.run_settings import PoolSettings, RunSettings
from kvhybrid.settings.model import CheckpointSettings, Gemma3Settings
from kvhybrid.text.codec import ByteCodec, TextCodec
from kvhybrid.text.corpus import held_out_text
from kvhybrid.workloads.random import Random

SAMPLE = excerpts(held_out_text(), 8192, 256)
TINY_SAMPLE = excerpts(held_out_text(), 1024, 128)


def engine(name: str, *, window: int | None = None, sinks: int = 0, **options: int) -> Engine:
    model = load_model(weights.folder_of(name))
    if window is not None:
        change_windows(model, window, sinks)
    return Engine(model, **{"num_blocks": 512, "max_batched_tokens": 512, "max_model_len": 300, **options})


def reference_bits(name: str, texts: Sequence[str]) -> float:
    """Bits per byte by transformers, which keeps no pages."""
    import transformers

    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        weights.folder_of(name), dtype=torch.float32, attn_implementation="eager"
    )
    losses = []
    for text in texts:
        ids = torch.tensor([list(text.encode())])
        with torch.no_grad():
            logits = oracle(input_ids=ids, use_cache=False).logits[0]
        losses.append(cross_entropy(logits[:-1], ids[0, 1:]).item())
    return sum(losses) / len(losses) / log(2)


# Measured with Python 3.11.7: gemma3_bytes 1.642, jamba_bytes 2.051.
@pytest.mark.parametrize("name", ["gemma3_bytes", "jamba_bytes"])
def test_the_trained_models_predict_source_that_they_have_not_seen(name: str) -> None:
    assert measure(engine(name), ByteCodec(), SAMPLE).bits_per_byte < 2.6


# Measured differences: gemma3_bytes 1.4e-7, jamba_bytes 4.8e-8.
@pytest.mark.parametrize("name", ["gemma3_bytes", "jamba_bytes"])
def test_bits_through_pages_are_the_loss_of_transformers(name: str) -> None:
    found = measure(engine(name), ByteCodec(), TINY_SAMPLE).bits_per_byte
    assert abs(found - reference_bits(name, TINY_SAMPLE)) < 1e-4


@pytest.mark.parametrize("name", ["gemma3_bytes", "jamba_bytes"])
def test_neither_chunks_nor_a_full_pool_change_the_figure(name: str) -> None:
    roomy = measure(engine(name), ByteCodec(), TINY_SAMPLE)
    tight = engine(name, num_blocks=64, max_batched_tokens=37, max_num_seqs=5)
    assert measure(tight, ByteCodec(), TINY_SAMPLE).bits == pytest.approx(roomy.bits, abs=0.05)


def test_every_smaller_window_costs_bits() -> None:
    bits = [
        measure(engine("gemma3_bytes", window=window), ByteCodec(), SAMPLE).bits_per_byte for window in (64, 16, 4)
    ]
    assert bits == sorted(bits)
    assert bits[1] > bits[0] + 0.01  # measured: 1.642, 1.684, 1.926


def test_the_engine_is_left_as_it_was() -> None:
    measured = engine("gemma3_bytes")
    before = measured.stats()
    measure(measured, ByteCodec(), TINY_SAMPLE)
    assert measured.stats() == before
    prompt = list(TINY_SAMPLE[0].encode())
    assert measured.generate([prompt], 8) == engine("gemma3_bytes").generate([prompt], 8)


class PairCodec(TextCodec):
    """A token is two bytes, behind a mark of its own; of a text with the letters a to p alone."""

    def encode(self, text: str) -> list[int]:
        letters = [ord(letter) - ord("a") for letter in text]
        return [256, *(16 * high + low for high, low in zip(letters[::2], letters[1::2], strict=True))]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + half) for t in token_ids if t < 256 for half in divmod(t, 16))


def test_bits_per_byte_do_not_depend_on_how_long_a_token_is() -> None:
    """A model that knows nothing spends the same on every token; its tokens have two bytes here."""
    model = Gemma3Settings(vocab_size=257).build()
    model.get_parameter("embed_tokens.weight").zero_()
    found = measure(Engine(model, num_blocks=64, max_model_len=128), PairCodec(), ["abcd" * 20, "ponm" * 10])
    assert (found.tokens, found.predicted_tokens, found.bytes) == (60, 60, 120)
    assert found.bits_per_byte == pytest.approx(log2(257) / 2, abs=1e-5)


class EndedCodec(PairCodec):
    """Sets a mark behind a text as well."""

    def encode(self, text: str) -> list[int]:
        return [*super().encode(text), 256]


def test_a_mark_behind_a_text_is_neither_predicted_nor_counted() -> None:
    engine = Engine(Gemma3Settings(vocab_size=257).build(), num_blocks=64, max_model_len=128)
    texts = ["abcd" * 20, "ponm" * 10]
    assert measure(engine, EndedCodec(), texts) == measure(engine, PairCodec(), texts)


def test_a_given_token_counts_as_much_as_a_predicted_one() -> None:
    assert Quality(bits=30.0, predicted_tokens=15, tokens=16, bytes=32).bits_per_byte == 1.0


@pytest.mark.parametrize(("num_bytes", "lengths"), [(300, [100] * 3), (250, [100, 100, 50]), (40, [40])])
def test_excerpts_are_spread_over_the_text(num_bytes: int, lengths: list[int]) -> None:
    text = bytes(range(128)) * 20
    found = [excerpt.encode() for excerpt in excerpts(text, num_bytes, 100)]
    assert list(map(len, found)) == lengths
    assert text.startswith(found[0])
    assert len(found) == 1 or text.endswith(found[-1])


def test_a_text_that_is_shorter_is_taken_whole_and_no_character_is_cut() -> None:
    text = "aé" * 5
    assert excerpts(text.encode(), 1000, 100) == [text]
    assert all("\ufffd" not in excerpt for excerpt in excerpts(text.encode(), 15, 5))


def test_a_last_excerpt_of_one_byte_is_left_out() -> None:
    assert [len(text) for text in excerpts(b"x" * 5000, 257, 256)] == [256]
    assert [len(text) for text in excerpts(b"x" * 5000, 258, 256)] == [256, 2]


def test_a_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ValueError, match=r"mine.txt: no UTF-8 at byte 3"):
        QualitySettings(path=str(tmp_path / "mine.txt"), bytes=10).texts()


def test_too_short_a_text_and_too_low_a_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(ValueError, match=r"short.txt: 1 bytes, too few"):
        QualitySettings(path=str(tmp_path / "short.txt"), bytes=100).texts()
    with pytest.raises(ValueError, match=r"quality.path: /no/such/file: cannot be read"):
        QualitySettings(path="/no/such/file", bytes=100).texts()
    with pytest.raises(ValueError, match=r"quality.excerpt_bytes must be at least 2, found 1"):
        QualitySettings(excerpt_bytes=1)


def settings(**changes: object) -> RunSettings:
    chosen = {
        "model": CheckpointSettings(path="gemma3_bytes", cpu_threads=1),
        "workload": Random(requests=1, prompt_tokens=32, max_new_tokens=2),
        "quality": QualitySettings(bytes=512, excerpt_bytes=128),
        **changes,
    }
    return RunSettings(**chosen)  # type: ignore[arg-type]


def test_a_run_has_its_figure_in_the_summary_and_in_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run(settings(), tmp_path / "run")
    assert summary.quality is not None
    figures = summary.figures()
    assert figures["quality/bits_per_byte"] == summary.quality.bits_per_byte
    assert figures["quality/bytes"] == 512
    assert f"{summary.quality.bits_per_byte:.3f} bits per byte of 512 bytes" in capsys.readouterr().out
    assert summary.cache.groups[0].tokens_asked == 32


def test_random_weights_are_not_measured(tmp_path: Path) -> None:
    summary = run(settings(model=Gemma3Settings(cpu_threads=1)), tmp_path / "run")
    assert summary.quality is None
    assert "quality/bits_per_byte" not in summary.figures()


def test_a_model_that_reads_no_text_is_measured_only_where_a_text_is_named(tmp_path: Path) -> None:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    folder = tmp_path / "checkpoint"
    config = Gemma3TextConfig(**Gemma3Settings(vocab_size=300).config())
    Gemma3ForCausalLM(config).save_pretrained(folder)
    model = CheckpointSettings(path=str(folder), cpu_threads=1, dtype="float32")
    assert run(settings(model=model), tmp_path / "run").quality is None
    (tmp_path / "mine.txt").write_text("import os\n" * 30)
    named = QualitySettings(path=str(tmp_path / "mine.txt"), bytes=100)
    with pytest.raises(InputError, match="no tokenizer"):
        run(settings(model=model, quality=named), tmp_path / "named")


def test_the_file_to_measure_is_read_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("import os\n" * 30)
    summary = run(settings(quality=QualitySettings(path=str(tmp_path / "mine.txt"), bytes=4096)), tmp_path / "one")
    assert summary.quality is not None
    assert summary.quality.bytes == 300
    with pytest.raises(InputError, match=r"quality.path: .*cannot be read"):
        run(settings(quality=QualitySettings(path=str(tmp_path / "none"), bytes=10)), tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_a_pool_too_small_for_an_excerpt_says_that_the_excerpt_is_the_longest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"quality.excerpt_bytes=128; quality=none skips the measurement"):
        run(settings(pool=PoolSettings(num_blocks=5)), tmp_path / "run")


def test_an_excerpt_longer_than_the_model_takes_is_named(tmp_path: Path) -> None:
    quality = QualitySettings(bytes=4096, excerpt_bytes=3000)
    with pytest.raises(InputError, match=r"quality.excerpt_bytes=3000 has 3002 tokens, more than the 2048"):
        run(settings(quality=quality, pool=PoolSettings(num_blocks=2000)), tmp_path / "run")


class Boastful(ByteCodec):
    """Knows a token more than the model."""

    def encode(self, text: str) -> list[int]:
        return [*super().encode(text), 256]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join("?" if token == 256 else super(Boastful, self).decode([token]) for token in token_ids)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="the tokenizer gives token id 256, but the model's end at 255"):
        measure(engine("gemma3_bytes"), Boastful(), TINY_SAMPLE)
