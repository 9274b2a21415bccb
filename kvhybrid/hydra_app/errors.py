"""Converts errors of Hydra and OmegaConf to one line: the key, what was found, what is accepted."""

from __future__ import annotations

import re
import types
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from kvhybrid.errors import nearest
from kvhybrid.hydra_app.parts import PARTS

MOST_SHOWN = 60
"""Maximum length of a value in a message, in characters."""
_TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "null",
    list: "a list [a,b]",
    dict: "a mapping",
}


def explain(error: BaseException) -> str:
    """The error in a config, on one line, from an exception that Hydra raised."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        options = [str(option) for option in error.options]
        if group in PARTS:
            options.append("module:Class")
        return f"{group}={choice}: no such choice{nearest(choice, options, f'{group}=')}"
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: {_one_line(str(error.__cause__ or error))}"
    ambiguous = re.match(r"Ambiguous value for argument '(([^=]*)=(.*))'", str(error))
    if ambiguous:
        given, key, values = ambiguous.groups()
        return f"{given} has several values: sweep over them with -m {given}, or write {key}=[{values}]"
    merged = re.match(r"In 'schema/(\w+)/([^']+)': .*\s.* is not a subclass of", str(error))
    if merged:
        return f"{merged[1]} takes one choice, found {merged[2]} and another; -m sweeps over several"
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__ or error.__context__
    if isinstance(cause, OmegaConfBaseException):
        return _place(str(error)) + (_explain_key(cause) or _one_line(cause.msg or str(cause)))
    return _one_line(str(error))


def _explain_key(error: OmegaConfBaseException) -> str | None:
    """The message for a key that the schema does not have, or a value of the wrong type."""
    key = str(error.full_key or "")
    name = str(error.key)
    if not key:
        return None
    prefix = key.removesuffix(name)
    if isinstance(error, (ConfigAttributeError, ConfigKeyError)):
        if is_dataclass(error.object_type):
            accepted = [field.name for field in fields(error.object_type)]
        else:
            accepted = [str(child) for child in error.parent_node or ()]
            if prefix == "tracking." and name in PARTS["tracking"].registry:
                chosen = ",".join((*accepted, name))
                return f"{key}: {name} is not among the trackers of this run; choose it with tracking=[{chosen}]"
        return f"{key}: no such key{nearest(name, accepted, prefix)}"
    if isinstance(error, ValidationError):
        wanted = get_type_hints(error.object_type).get(name) if is_dataclass(error.object_type) else None
        if wanted is not None:
            return f"{key} must be {_words(wanted)}, found {_found(str(error))}"
    return f"{key}: {_one_line(str(error))}"


def _found(message: str) -> str:
    """The invalid value, if OmegaConf's message has it."""
    value = re.match(r"Value '(.*)' (?:of type '\w+'|is not a valid)", message, re.DOTALL)
    if value:
        return value[1] if len(value[1]) <= MOST_SHOWN else f"{value[1][:MOST_SHOWN]}..."
    if "is not Optional" in message:
        return "null"
    kind = re.match(r"Invalid value assigned: (\w+) is not", message)
    return f"a value of type {kind[1]}" if kind else _one_line(message)


def _words(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_words(part) for part in get_args(kind))
    return _TYPE_WORDS.get(get_origin(kind) or kind, str(kind))


def _place(message: str) -> str:
    """The YAML file with the error, if Hydra names one."""
    where = re.match(r"In '([^']+)': \w+ raised while composing", message)
    return f"{where[1]}.yaml: " if where else ""


def _one_line(message: str) -> str:
    """The message without OmegaConf's and Hydra's trailing notes."""
    kept = re.split(r"\n\s*(?:full_key:|See https|Config search path)", message)[0]
    return " ".join(kept.split())
