"""Groups of requests that start with the same long text, such as a system prompt or a document."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.workloads.base import PromptList, TokenSource, Traffic, Workload, WorkloadRequest


@dataclass(kw_only=True)
class SharedPrefix(Workload):
    """``num_prefixes`` prefixes, each with ``requests_per_prefix`` different endings, in random order."""

    num_prefixes: int = 8
    requests_per_prefix: int = 8
    prefix_tokens: int = 192
    suffix_tokens: int = 24
    max_new_tokens: int = 16

    @property
    def num_requests(self) -> int:
        return self.num_prefixes * self.requests_per_prefix

    @property
    def longest_request(self) -> int:
        return self.prefix_tokens + self.suffix_tokens + self.max_new_tokens

    def traffic(self, vocab_size: int) -> Traffic:
        tokens = TokenSource(self.seed, vocab_size)
        requests = [
            WorkloadRequest(
                f"prefix{group}-{member}", prefix + tokens.draw(self.suffix_tokens), self.max_new_tokens
            )
            for group in range(self.num_prefixes)
            for prefix in [tokens.draw(self.prefix_tokens)]
            for member in range(self.requests_per_prefix)
        ]
        return PromptList([requests[i] for i in tokens.random.permutation(len(requests))])
