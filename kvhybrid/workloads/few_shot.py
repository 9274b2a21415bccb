"""Few-shot prompts: examples drawn from a common pool, then a question that differs per request."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.settings.values import MOST_TOKENS, at_least
from kvhybrid.workloads.base import PromptList, TokenSource, Traffic, Workload, WorkloadRequest


@dataclass(kw_only=True)
class FewShot(Workload):
    """Every prompt has ``shots`` of ``pool_examples`` examples, in the pool's order. Two prompts share a prefix up
    to the first example that differs."""

    pool_examples: int = 8
    example_tokens: int = 48
    shots: int = 4
    question_tokens: int = 24
    requests: int = 48
    max_new_tokens: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        pool = self.pool_examples * self.example_tokens
        at_least("workload.pool_examples times workload.example_tokens", pool, 1, MOST_TOKENS)
        if self.shots > self.pool_examples:
            raise ValueError(
                f"workload.shots must be at most workload.pool_examples, {self.pool_examples}, found {self.shots}"
            )

    @property
    def num_requests(self) -> int:
        return self.requests

    @property
    def longest_request(self) -> int:
        return self.shots * self.example_tokens + self.question_tokens + self.max_new_tokens

    def traffic(self, vocab_size: int) -> Traffic:
        tokens = TokenSource(self.seed, vocab_size)
        pool = [tokens.draw(self.example_tokens) for _ in range(self.pool_examples)]
        requests = []
        for index in range(self.requests):
            chosen = sorted(tokens.random.choice(self.pool_examples, size=self.shots, replace=False))
            shown = [token for example in chosen for token in pool[example]]
            prompt = shown + tokens.draw(self.question_tokens)
            requests.append(WorkloadRequest(f"question{index}", prompt, self.max_new_tokens))
        return PromptList(requests)
