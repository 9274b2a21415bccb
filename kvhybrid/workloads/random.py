"""Prompts that share nothing: the overhead of a cache that cannot help."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.workloads.base import PromptList, TokenSource, Traffic, Workload, WorkloadRequest


@dataclass(kw_only=True)
class Random(Workload):
    """``requests`` prompts of ``prompt_tokens`` independent random tokens."""

    requests: int = 32
    prompt_tokens: int = 192
    max_new_tokens: int = 16

    @property
    def num_requests(self) -> int:
        return self.requests

    @property
    def longest_request(self) -> int:
        return self.prompt_tokens + self.max_new_tokens

    def traffic(self, vocab_size: int) -> Traffic:
        tokens = TokenSource(self.seed, vocab_size)
        return PromptList(
            [
                WorkloadRequest(f"random{index}", tokens.draw(self.prompt_tokens), self.max_new_tokens)
                for index in range(self.requests)
            ]
        )
