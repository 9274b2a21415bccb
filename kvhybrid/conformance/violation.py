"""A contract that a plug-in breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeVar

Result = TypeVar("Result")


class Violation(Exception):  # noqa: N818 - it reports a fault of the plug-in, not of the kit
    """A broken contract: the check that found it, what was found, and the correct answer if it is known."""

    def __init__(self, check: str, text: str, right: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.check = check
        self.text = text
        self.right = right


def raised(error: Exception) -> str:
    """The exception, and the innermost line of code that raised it."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    frames = extract_tb(cause.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].name})" if frames else ""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return f"{text}{place}"


def guarded(check: str, subject: str, call: Callable[[], Result]) -> Result:
    """``call()``, with any exception converted to a violation of ``check``."""
    try:
        return call()
    except Violation:
        raise
    except Exception as error:
        raise Violation(check, f"{subject} raises {raised(error)}") from error
