"""``docs/models.md`` is what ``runs/models`` finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runs.models.run import EQUAL, PAGE, REFUSED_HERE, model_types, page, row_of
from runs.models.small import HYBRIDS, REFUSED

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINES = (DOCS / PAGE).read_text(encoding="utf-8").splitlines()
SAMPLE = ("bert", "cpmant", "gemma3", "gpt2", "jamba", "llama", "minimax", "qwen4_exp_text", "whisper")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("model_type", SAMPLE)
def test_the_page_has_what_is_found_now(model_type: str) -> None:
    assert str(row_of(model_type)) in LINES


def test_the_page_has_every_causal_type() -> None:
    found = [match[1] for line in LINES if (match := re.match(r"\| `([^`]+)` \|", line))]
    assert found == model_types()


def test_of_the_types_with_several_kinds_at_most_six_are_not_equal() -> None:
    plans = {cells[1].strip(" `"): cells[3].strip() for line in LINES if len(cells := line.split("|")) == 7}
    assert {plans[name] for name in HYBRIDS} == {EQUAL}
    assert {plans[name] for name in REFUSED} == {REFUSED_HERE}
    assert len(REFUSED) <= 6
    assert sum(plan == EQUAL for plan in plans.values()) > 120


@pytest.mark.long
def test_the_whole_page_is_what_is_found_now() -> None:
    rows = [row_of(name) for name in model_types()]
    assert page(rows).splitlines() == LINES
