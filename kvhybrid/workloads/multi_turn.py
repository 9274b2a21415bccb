"""Conversations: a turn's prompt is all that was said before, the model's own words included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvhybrid.workloads.base import TokenIds, TokenSource, Traffic, Workload, WorkloadRequest


@dataclass(kw_only=True)
class MultiTurn(Workload):
    """``num_conversations`` side by side. All open with the same ``system_tokens``; a turn is sent when the
    conversation's last one has been answered."""

    num_conversations: int = 8
    turns: int = 4
    system_tokens: int = 64
    user_tokens: int = 32
    """New tokens of the user in every turn."""
    max_new_tokens: int = 32

    @property
    def num_requests(self) -> int:
        return self.num_conversations * self.turns

    @property
    def longest_request(self) -> int:
        return self.system_tokens + self.turns * (self.user_tokens + self.max_new_tokens)

    def traffic(self, vocab_size: int) -> Traffic:
        return Conversations(self, vocab_size)


class Conversations(Traffic):
    """The conversations on their way. What the users say is drawn before the first turn, so that it does not
    depend on the order in which the answers come."""

    def __init__(self, workload: MultiTurn, vocab_size: int) -> None:
        tokens = TokenSource(workload.seed, vocab_size)
        opening = tokens.draw(workload.system_tokens)
        self._max_new_tokens = workload.max_new_tokens
        self._unsaid = {
            conversation: [tokens.draw(workload.user_tokens) for _ in range(workload.turns)]
            for conversation in range(workload.num_conversations)
        }
        self._answering: dict[str, tuple[int, TokenIds]] = {}
        self._ready = [self._next_turn(conversation, opening) for conversation in self._unsaid]

    def ready(self) -> list[WorkloadRequest]:
        sent, self._ready = self._ready, []
        return sent

    def finished(self, request_id: str, output_token_ids: Sequence[int]) -> None:
        conversation, said = self._answering.pop(request_id)
        if self._unsaid[conversation]:
            self._ready.append(self._next_turn(conversation, [*said, *output_token_ids]))

    def _next_turn(self, conversation: int, said: TokenIds) -> WorkloadRequest:
        unsaid = self._unsaid[conversation]
        request_id = f"conversation{conversation}-{len(unsaid)}left"
        prompt = said + unsaid.pop(0)
        self._answering[request_id] = (conversation, prompt)
        return WorkloadRequest(request_id, prompt, self._max_new_tokens)
