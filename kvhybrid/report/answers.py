"""Prompts and completions, on stdout and as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict

from kvhybrid.workloads.base import Answer


def print_answers(answers: Iterable[Answer]) -> None:
    """Print each prompt, its lines prefixed with ``>``, and its completion below."""
    for answer in answers:
        prompt = "\n".join(f"> {line}".rstrip() for line in _shown(answer.prompt).split("\n"))
        print(f"{prompt}\n{_shown(answer.text)}\n")


def to_json_lines(answers: Iterable[Answer]) -> str:
    """One JSON object per line, with the keys of `Answer`."""
    return "".join(json.dumps(asdict(answer), ensure_ascii=False) + "\n" for answer in answers)


def _shown(text: str) -> str:
    """``text`` without terminal control characters, limited to the encoding of stdout."""
    plain = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    encoding = sys.stdout.encoding or "utf-8"
    return plain.encode(encoding, errors="replace").decode(encoding)
