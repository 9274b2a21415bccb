"""Conversations: the prompt of a turn is the whole conversation so far, including the model's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvhybrid.workloads.base import TokenIds, TokenSource, Traffic, Workload, WorkloadRequest


@dataclass(kw_only=True)
class MultiTurn(Workload):
    """``num_conversations`` concurrent conversations with the same ``system_tokens`` at the start. A turn is sent
    when the previous one has been answered."""

    num_conversations: int = 8
    turns: int = 4
    system_tokens: int = 64
    user_tokens: int = 32
    """Tokens of the user's message per turn."""
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
    """The state of the conversations. All user messages are drawn before the first turn, so that they do not
    depend on the order of the answers."""

    def __init__(self, workload: MultiTurn, vocab_size: int) -> None:
        tokens = TokenSource(workload.seed, vocab_size)
        opening = tokens.draw(workload.system_tokens)
        self._max_new_tokens = workload.max_new_tokens
        self._pending_turns = {
            conversation: [tokens.draw(workload.user_tokens) for _ in range(workload.turns)]
            for conversation in range(workload.num_conversations)
        }
        self._answering: dict[str, tuple[int, TokenIds]] = {}
        self._ready = [self._next_turn(conversation, opening) for conversation in self._pending_turns]

    def ready(self) -> list[WorkloadRequest]:
        sent, self._ready = self._ready, []
        return sent

    def finished(self, request_id: str, output_token_ids: Sequence[int]) -> None:
        conversation, history = self._answering.pop(request_id)
        if self._pending_turns[conversation]:
            self._ready.append(self._next_turn(conversation, [*history, *output_token_ids]))

    def _next_turn(self, conversation: int, history: TokenIds) -> WorkloadRequest:
        pending = self._pending_turns[conversation]
        request_id = f"conversation{conversation}-{len(pending)}left"
        prompt = history + pending.pop(0)
        self._answering[request_id] = (conversation, prompt)
        return WorkloadRequest(request_id, prompt, self._max_new_tokens)
