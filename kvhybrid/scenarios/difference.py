"""Shortens two answers to the parts that differ."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 150
AROUND = 3
"""Entries of a long list that are shown before the first difference."""


def difference(expected: Any, got: Any) -> tuple[str, str]:
    """``expected`` and ``got`` as text: for objects, the keys that differ; for long lists, the entries around the
    first difference."""
    if isinstance(expected, dict) and isinstance(got, dict):
        keys = [key for key in {**expected, **got} if expected.get(key) != got.get(key)]
        return _object(expected, keys), _object(got, keys)
    if isinstance(expected, list) and isinstance(got, list) and len(_text(expected)) + len(_text(got)) > WIDTH:
        first = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
        start = max(0, (min(len(expected), len(got)) if first is None else first) - AROUND)
        return _part(expected, start), _part(got, start)
    return _cut(_text(expected)), _cut(_text(got))


def _object(whole: dict[str, Any], keys: list[str]) -> str:
    return _cut(_text({key: whole[key] for key in keys if key in whole}))


def _part(whole: list[Any], start: int) -> str:
    text = _text(whole[start:])
    return _cut(f"[… from entry {start}: {text[1:]}" if start else text)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
