"""Patterns of names, such as those of modules: ``"blocks.*.attn"``."""

import re
from collections.abc import Iterator
from functools import lru_cache


def enclosing(name: str) -> Iterator[str]:
    """Yield the qualified name of a module and those of the modules around it, innermost first."""
    yield name
    while name:
        name = name.rpartition(".")[0]
        yield name


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the whole name.

    In it ``*`` stands for any name between dots or any part of one, ``?`` for one character of
    one, and ``**``, between dots, for any number of names.
    """
    # A dot follows each name, so that a repetition matches any number of names.
    return _compiled(pattern).fullmatch(f"{name}." if name else "") is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = pattern.split(".") if pattern else []
    return re.compile("".join(map(_expression, parts)))


def _expression(part: str) -> str:
    if part == "**":
        return r"(?:[^.]+\.)*"
    if part == "*":
        return r"[^.]+\."
    kinds = {"*": "[^.]*", "?": "[^.]"}
    return "".join(kinds.get(each, re.escape(each)) for each in part) + r"\."
