"""The English of pages, config comments, help texts, messages, docstrings and comments: no translated phrases."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kvhybrid", "specs", "managers", "models")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("runs/*/README.md"),
]
SOURCES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
NATIVE = [path for path in (ROOT / "managers" / "kernel").iterdir() if path.suffix in (".c", ".h")]
CONFIGS = list((ROOT / "conf").rglob("*.yaml"))

UNITS = "block|byte|element|file|group|layer|line|page|request|row|step|token|unit"
"""What "per" belongs in front of, not "a": `bytes a block` without a verb after it."""

PHRASES = (
    "so many",
    "as far as",
    "anew",
    "(?:no|some)body",
    "whoever",
    "in hand",
    "for the sake of",
    "c[ao]mes? of",
    "(?:is|are) of now",
    "(?:in|by) turns",
    "likewise",
    "what is there",
    "where there (?:is|are)",
    "g[ai]ves? way",
    "st(?:ands?|ood) for",
    "dear(?:er|est)?",
    "at the least",
    "go(?:es)? home",
    "what is left of",
    "that which",
    "slip of the pen",
    "(?:prompts?|texts?) in words",
    "let(?:s|ting)? go of",
    "besides?",
    "(?:one|a) [a-z]+ a (?:file|line|step)",
    rf"(?:µs|bytes|blocks|numbers|tokens|steps|rows|one) an? (?:{UNITS})(?= (?:in|for|of|and) |[^a-z ]|$)",
    r"(?!(?:t?here|where)\b)[\w`]+[`)]* (?:is|are) no (?!longer|more|less|[a-z]+er\b|different|one\b)[a-z]+",
    "(?:know|say|tell)s? (?:nothing |anything )?of",
    "raises? [`a-z]+(?:, [^,]+,)? where",
    "(?:of|in) whatever",
    "stands? (?:in|where)(?! for)",
    "afresh",
    "now and then",
    "be they",
    "but for the",
    "passed over",
)
"""Regular expressions of phrases that have a plainer equivalent."""
ANY = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b".replace(" ", r"\s+"), re.IGNORECASE)

Texts = Iterator[tuple[int, str]]
"""Texts, each with the number of its first line."""


def page_texts(text: str) -> Texts:
    """The whole page without code."""
    yield 1, re.sub(r"^```.*?^```$|`[^`]*`", lambda code: "\n" * code[0].count("\n"), text, flags=re.M | re.S)


def config_texts(text: str) -> Texts:
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, line.partition("#")[2]


def source_texts(text: str) -> Texts:
    """Comments and strings: docstrings, help texts and messages, including the literal parts of f-strings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def native_texts(text: str) -> Texts:
    """Comments and messages of a C file."""
    for match in re.finditer(r"/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"", text, re.DOTALL):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def phrases(texts: Texts) -> list[tuple[int, str]]:
    """Every phrase with its line number. Line breaks in a phrase do not matter."""
    return [
        (start + text.count("\n", 0, match.start()), " ".join(match[0].split()))
        for start, text in texts
        for match in ANY.finditer(text)
    ]


@pytest.mark.parametrize(
    ("paths", "texts"),
    [(PAGES, page_texts), (CONFIGS, config_texts), (SOURCES, source_texts), (NATIVE, native_texts)],
    ids=["pages", "configs", "sources", "native"],
)
def test_the_project_writes_plain_english(paths: list[Path], texts: Callable[[str], Texts]) -> None:
    assert paths
    found = [
        f"{path.relative_to(ROOT)}, line {line}: {phrase!r}"
        for path in sorted(paths)
        for line, phrase in phrases(texts(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("texts", "text", "found"),
    [
        (page_texts, "nobody\n```sh\nnobody\n```\n`nobody` stands\nfor\n", [(1, "nobody"), (5, "stands for")]),
        (config_texts, "dear: 1  # computed anew\n", [(1, "anew")]),
        (source_texts, 'def f():\n    """\n    What stands\n    for it."""\n', [(3, "stands for")]),
        (
            source_texts,
            'raise E(f"{x} for the sake of {y}")  # So many\n',
            [(1, "So many"), (1, "for the sake of")],
        ),
        (source_texts, "nobody = somebody\n", []),
        (page_texts, "9 bytes a block. The blocks a step reads\n", [(1, "bytes a block")]),
        (page_texts, "0 is no block; there is no block, and it is no longer\n", [(1, "0 is no block")]),
        (native_texts, 'int dear;\n/* computed\n   anew */ f("in hand");\n', [(3, "anew"), (3, "in hand")]),
    ],
)
def test_phrases_are_found_where_people_read_them(
    texts: Callable[[str], Texts], text: str, found: list[tuple[int, str]]
) -> None:
    assert phrases(texts(text)) == found
