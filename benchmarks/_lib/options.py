"""Values of options: a wrong one ends a benchmark with a message instead of a traceback."""

import re
from collections.abc import Callable
from typing import Any

import click


def checked(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return `parse`, whose errors become click's; what is no text passes."""

    def convert(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except (ValueError, re.error) as error:
            raise click.BadParameter(str(error)) from None

    return convert


def numbers(kind: Callable[[str], Any], separator: str = ",") -> Callable[[Any], Any]:
    """Return a function that makes a list of a text."""
    return checked(lambda text: [kind(each) for each in text.split(separator) if each])
