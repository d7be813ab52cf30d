"""What policies show of themselves."""

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


class Shown:
    """A policy as its arguments, and in a notebook as a table of its answers."""

    def __repr__(self) -> str:
        """Return the arguments that differ from their defaults, for dataclasses."""
        given: list[str] = []
        own: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        for each in own:
            value = getattr(self, each.name)
            if each.init and value != each.default:
                text = _size(value) if "nbytes" in each.name else repr(value)
                given.append(text if each.default is MISSING else f"{each.name}={text}")
        return f"{type(self).__name__}({', '.join(given)})"

    def _repr_html_(self) -> str:
        from offgrad._display import Grid, as_html  # few programs show a policy

        return as_html([Grid(["tensors", "go to"], self.answers(), texts=2)])

    def answers(self) -> list[tuple[str, str]]:
        """Return pairs for people: which tensors, and where they go; the first that holds."""
        return [("all", str(self))]


def answers_of(policy: Any) -> list[tuple[str, str]]:
    """Return the answers of a policy, which may lack that method."""
    answers: list[tuple[str, str]] = getattr(policy, "answers", lambda: [("all", str(policy))])()
    return answers


def _size(nbytes: Any) -> str:
    """Return bytes as `as_nbytes` takes them."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if isinstance(nbytes, int) and nbytes and nbytes % (1 << power) == 0:
            return repr(f"{nbytes >> power}{unit}")
    return repr(nbytes)
