"""The engine: the same tokens whatever the cache, the chunks and the batch do, and figures that add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, JambaConfig, JambaForCausalLM

from kvhybrid.engine.engine import DEFAULT_MEMORY_BYTES, Engine, StepOutput
from kvhybrid.engine.sampling import SamplingParams
from kvhybrid.planning import PlanningError

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB = 101
NEW_TOKENS = 8
GROWTH = 20
"""New tokens of the short prompts: they are admitted together and outgrow a small pool."""
MAX_LEN = 96
FAMILIES = ("gemma3", "jamba")
DRAWN = [SamplingParams(temperature=0.8, top_k=(0, 5, 20)[i % 3], seed=i) for i in range(8)]


def tiny_gemma() -> Any:
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=12,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
            max_position_embeddings=MAX_LEN,
            query_pre_attn_scalar=8,
            tie_word_embeddings=False,
            initializer_range=0.3,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def tiny_jamba() -> Any:
    return JambaForCausalLM(
        JambaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            attn_layer_period=4,
            attn_layer_offset=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=4,
            num_experts_per_tok=2,
            mamba_d_state=4,
            mamba_d_conv=4,
            mamba_expand=1,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
            max_position_embeddings=MAX_LEN,
            initializer_range=0.3,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=0,
        )
    )


@pytest.fixture(scope="module")
def hf_models() -> dict[str, Any]:
    """Tiny models with random weights, wide enough that tokens depend on what came before."""
    torch.manual_seed(0)
    return {"gemma3": tiny_gemma().eval(), "jamba": tiny_jamba().eval()}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Eight ragged prompts; five of them share 30 tokens, and two share 7."""
    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        return torch.randint(1, VOCAB, (count,), generator=generator).tolist()

    long, short = tokens(30), tokens(7)
    return [
        long + tokens(13),
        short + tokens(1),
        long + tokens(4),
        tokens(50),
        long + tokens(27),
        short + tokens(16),
        list(long),
        long + tokens(1),
    ]


@pytest.fixture(scope="module")
def expected(hf_models: dict[str, Any], prompts: list[list[int]]) -> dict[str, list[list[int]]]:
    """What transformers generates greedily, one prompt at a time."""
    return {name: [hf_generate(model, prompt) for prompt in prompts] for name, model in hf_models.items()}


@pytest.fixture(scope="module")
def short_prompts(prompts: list[list[int]]) -> list[list[int]]:
    return [prompt[: 3 + index] for index, prompt in enumerate(prompts)]


def hf_generate(model: Any, prompt: list[int], max_new_tokens: int = NEW_TOKENS) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def engine_of(model: Any, **options: Any) -> Engine:
    """An engine whose fresh pages hold NaN: reading an unwritten entry shows in the tokens."""
    engine = Engine.from_hf(model, **{"block_size": 4, "num_blocks": 400, "max_model_len": MAX_LEN, **options})
    for tensor in engine.pool.tensors:
        tensor[1:] = 0xFF
    return engine


def assert_nothing_is_held(engine: Engine) -> None:
    stats = engine.stats()
    assert not engine.has_unfinished
    assert stats.usage == 0
    assert stats.blocks_free == engine.cache.num_free_blocks == engine.plan.num_blocks - 1
    assert [group.blocks_live for group in stats.groups] == [0] * len(stats.groups)


# ---- the same tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompts_make_tokens_that_differ(family: str, expected: dict[str, list[list[int]]]) -> None:
    """Without this the comparisons below would compare little."""
    assert len({token for tokens in expected[family] for token in tokens}) > 20


VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "without prefix caching": {"enable_prefix_caching": False},
    "one at a time": {"max_num_seqs": 1},
    "chunks of 3": {"max_batched_tokens": 3},
    "chunks of 7": {"max_batched_tokens": 7},
    "chunks of 16": {"max_batched_tokens": 16},
    "large blocks": {"block_size": 16},
    "keys finer than blocks": {"block_size": 16, "hash_block_size": 4},
    "states of the last boundary only": {"retention_interval": 0},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(
    family: str,
    variant: str,
    hf_models: dict[str, Any],
    prompts: list[list[int]],
    expected: dict[str, list[list[int]]],
) -> None:
    engine = engine_of(hf_models[family], **VARIANTS[variant])
    assert engine.generate(prompts, NEW_TOKENS) == expected[family]
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("family", FAMILIES)
def test_preempted_requests_get_the_same_tokens(
    family: str, hf_models: dict[str, Any], short_prompts: list[list[int]]
) -> None:
    expected = [hf_generate(hf_models[family], prompt, GROWTH) for prompt in short_prompts]
    for enable_prefix_caching in (True, False):
        engine = small_pool(hf_models[family], enable_prefix_caching=enable_prefix_caching)
        assert engine.generate(short_prompts, GROWTH) == expected
        assert engine.scheduler.num_preemptions > 0
        assert_nothing_is_held(engine)


def small_pool(model: Any, **options: Any) -> Engine:
    """A pool with room for one longest request and no more."""
    limits = {"max_batched_tokens": 16, "max_model_len": 40}
    longest = engine_of(model, **limits).plan.blocks_per_request
    return engine_of(model, **limits, num_blocks=sum(longest) + 1, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_run_of_the_same_prompts_hits_and_gives_the_same_tokens(
    family: str,
    hf_models: dict[str, Any],
    prompts: list[list[int]],
    expected: dict[str, list[list[int]]],
) -> None:
    engine = engine_of(hf_models[family])
    assert engine.generate(prompts, NEW_TOKENS) == expected[family]
    first = engine.stats().groups[0]
    assert engine.generate(prompts, NEW_TOKENS) == expected[family]
    second = engine.stats().groups[0]
    asked = second.tokens_asked - first.tokens_asked
    hit = second.tokens_hit - first.tokens_hit
    assert asked == sum(map(len, prompts))
    assert hit / asked > 0.75


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_prefix_is_hit_by_a_request_that_goes_on_differently(
    family: str, hf_models: dict[str, Any], prompts: list[list[int]], expected: dict[str, list[list[int]]]
) -> None:
    engine = engine_of(hf_models[family])
    answers = [engine.generate([prompt], NEW_TOKENS)[0] for prompt in prompts]
    assert answers == expected[family]
    assert engine.stats().groups[0].tokens_hit > 0


def test_a_hit_may_end_inside_a_block_which_is_copied(
    hf_models: dict[str, Any], prompts: list[list[int]], expected: dict[str, list[list[int]]]
) -> None:
    """The writer goes on in a block of its own, and so does every reader, while they run side by side."""
    hits = []
    for unit in (4, 16):
        engine = engine_of(hf_models["jamba"], block_size=16, hash_block_size=unit, max_num_seqs=3)
        assert engine.generate(prompts * 2, NEW_TOKENS) == expected["jamba"] * 2
        assert_nothing_is_held(engine)
        hits.append(engine.stats().groups[0].tokens_hit)
    finer, coarser = hits
    assert finer > coarser


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_goes_on_from_its_own_output(
    family: str, hf_models: dict[str, Any], prompts: list[list[int]]
) -> None:
    engine = engine_of(hf_models[family])
    history = prompts[0]
    for turn in range(3):
        before = engine.stats().groups[0].tokens_hit
        (answer,) = engine.generate([history], NEW_TOKENS)
        assert answer == hf_generate(hf_models[family], history)
        if turn:
            assert engine.stats().groups[0].tokens_hit - before >= len(history) // 2
        history = history + answer + [turn + 1]


# ---- drawn tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_tokens_do_not_depend_on_the_batch(
    family: str, hf_models: dict[str, Any], short_prompts: list[list[int]]
) -> None:
    model = hf_models[family]
    together = engine_of(model).generate(short_prompts, GROWTH, sampling=DRAWN)
    alone = engine_of(model, max_num_seqs=1, enable_prefix_caching=False)
    preempted = small_pool(model)
    assert alone.generate(short_prompts, GROWTH, sampling=DRAWN) == together
    assert preempted.generate(short_prompts, GROWTH, sampling=DRAWN) == together
    assert preempted.scheduler.num_preemptions > 0
    assert together != engine_of(model).generate(short_prompts, GROWTH)


# ---- step by step


@pytest.mark.parametrize("family", FAMILIES)
def test_the_figures_add_up_after_every_step(
    family: str, hf_models: dict[str, Any], short_prompts: list[list[int]]
) -> None:
    engine = small_pool(hf_models[family])
    for prompt in short_prompts:
        engine.add_request(prompt, max_new_tokens=GROWTH)
    outputs: list[StepOutput] = list(engine.stream())
    for number, output in enumerate(outputs, start=1):
        stats, cache = output.stats, output.stats.cache
        assert stats.step == number
        assert stats.num_scheduled_tokens <= 16
        assert stats.num_new_tokens == sum(map(len, output.tokens.values()))
        live = sum(group.blocks_live for group in cache.groups)
        assert live + cache.blocks_free == cache.num_blocks == engine.plan.num_blocks - 1
        assert cache.usage == pytest.approx(live / cache.num_blocks)
        assert sum(group.blocks_reusable for group in cache.groups) <= cache.blocks_free
        for group in cache.groups:
            assert 0 <= group.tokens_hit <= group.tokens_own_hit <= group.tokens_asked
    assert outputs[-1].stats.preemptions == engine.scheduler.num_preemptions > 0
    assert sum(len(output.finished) for output in outputs) == len(short_prompts)
    computed = sum(output.stats.num_scheduled_tokens for output in outputs)
    adopted = outputs[-1].stats.cache.groups[0].tokens_hit
    assert computed + adopted >= sum(map(len, short_prompts)) + len(short_prompts) * (GROWTH - 1)


def test_tokens_stream_out_as_they_are_sampled(
    hf_models: dict[str, Any], prompts: list[list[int]], expected: dict[str, list[list[int]]]
) -> None:
    engine = engine_of(hf_models["gemma3"])
    names = [engine.add_request(prompt, max_new_tokens=NEW_TOKENS) for prompt in prompts]
    streamed: dict[str, list[int]] = {name: [] for name in names}
    ended: list[str] = []
    for output in engine.stream():
        for name, tokens in output.tokens.items():
            assert len(tokens) == 1
            streamed[name] += tokens
        ended += output.finished
    assert list(streamed.values()) == expected["gemma3"]
    assert sorted(ended) == sorted(names)


def test_requests_may_join_at_any_step(
    hf_models: dict[str, Any], prompts: list[list[int]], expected: dict[str, list[list[int]]]
) -> None:
    engine = engine_of(hf_models["jamba"])
    streamed: dict[str, list[int]] = {}
    waiting = list(prompts)
    while waiting or engine.has_unfinished:
        if waiting:
            streamed[engine.add_request(waiting.pop(0), max_new_tokens=NEW_TOKENS)] = []
        for name, tokens in engine.step().tokens.items():
            streamed[name] += tokens
    assert list(streamed.values()) == expected["jamba"]


def test_an_end_token_ends_its_request(
    hf_models: dict[str, Any], prompts: list[list[int]], expected: dict[str, list[list[int]]]
) -> None:
    end = expected["gemma3"][0][3]
    cut = [tokens[: tokens.index(end) + 1] if end in tokens else tokens for tokens in expected["gemma3"]]
    assert engine_of(hf_models["gemma3"], eos_token_id=end).generate(prompts, NEW_TOKENS) == cut


def test_requests_of_another_salt_share_nothing(hf_models: dict[str, Any], prompts: list[list[int]]) -> None:
    engine = engine_of(hf_models["gemma3"])
    for salt in ("a", "b"):
        engine.generate(prompts[:1], 1, cache_salt=salt)
    assert engine.stats().groups[0].tokens_hit == 0
    engine.generate(prompts[:1], 1, cache_salt="a")
    assert engine.stats().groups[0].tokens_hit > 0


# ---- when something fails


def test_a_failed_forward_pass_loses_no_request_and_leaves_no_wrong_key(
    hf_models: dict[str, Any], prompts: list[list[int]], expected: dict[str, list[list[int]]]
) -> None:
    engine = engine_of(hf_models["jamba"])
    names = [engine.add_request(prompt, max_new_tokens=NEW_TOKENS) for prompt in prompts]

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    hook = engine.model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    hook.remove()
    streamed: dict[str, list[int]] = {name: [] for name in names}
    for output in engine.stream():
        for name, tokens in output.tokens.items():
            streamed[name] += tokens
    assert list(streamed.values()) == expected["jamba"]


def test_generate_drops_its_requests_when_one_is_too_long(
    hf_models: dict[str, Any], prompts: list[list[int]], expected: dict[str, list[list[int]]]
) -> None:
    engine = engine_of(hf_models["gemma3"])
    with pytest.raises(ValueError, match="a prompt of 96 tokens leaves no room"):
        engine.generate([prompts[0], [1] * MAX_LEN])
    assert_nothing_is_held(engine)
    assert engine.generate(prompts[:2], NEW_TOKENS) == expected["gemma3"][:2]


def test_a_pool_below_one_longest_request_is_refused_when_it_is_planned(hf_models: dict[str, Any]) -> None:
    with pytest.raises(PlanningError, match="one request of 96 tokens needs"):
        engine_of(hf_models["gemma3"], num_blocks=20)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ([], {}, "the prompt has no tokens"),
        ([1, VOCAB], {}, rf"token ids must lie in \[0, {VOCAB}\), found 1 to {VOCAB}"),
        ([-1], {}, "token ids must lie in"),
        ([1, 2.0], {}, "token id 1 must be an integer, found 2.0"),
        ([True], {}, "token id 0 must be an integer, found True"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ([1], {"request_id": "taken"}, "request id 'taken' is taken"),
    ],
)
def test_a_bad_request_is_refused_and_nothing_is_queued(
    hf_models: dict[str, Any], prompt: list[int], options: dict[str, Any], words: str
) -> None:
    engine = engine_of(hf_models["gemma3"])
    engine.add_request([1, 2], request_id="taken")
    with pytest.raises(ValueError, match=words):
        engine.add_request(prompt, **options)
    assert len(engine.scheduler.waiting) == 1


# ---- building one


def test_an_unknown_option_is_a_type_error_that_lists_the_known_ones(hf_models: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"unknown option num_block; accepted: .*num_blocks"):
        Engine.from_hf(hf_models["gemma3"], num_block=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_folder_gives_the_same_engine(
    family: str,
    tmp_path: Path,
    hf_models: dict[str, Any],
    prompts: list[list[int]],
    expected: dict[str, list[list[int]]],
) -> None:
    hf_models[family].save_pretrained(tmp_path)
    for folder in (tmp_path, str(tmp_path)):
        assert engine_of(folder).generate(prompts[:2], NEW_TOKENS) == expected[family][:2]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pool_takes_the_bytes_that_were_planned(family: str, hf_models: dict[str, Any]) -> None:
    engine = Engine.from_hf(hf_models[family], block_size=4, memory_bytes=1 << 20)
    assert engine.pool.num_bytes == engine.plan.memory_bytes <= 1 << 20
    assert engine.pool.num_bytes > (1 << 20) - engine.plan.bytes_per_block


def test_without_a_size_the_pool_holds_max_num_seqs_longest_requests(hf_models: dict[str, Any]) -> None:
    engine = Engine.from_hf(hf_models["gemma3"], max_num_seqs=3)
    assert engine.plan.num_blocks == 1 + 3 * sum(engine.plan.blocks_per_request)
    assert engine.plan.memory_bytes <= DEFAULT_MEMORY_BYTES
