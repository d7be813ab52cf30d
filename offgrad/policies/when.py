"""When: a policy for those saves alone that conditions hold for."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from offgrad.memory import format_nbytes
from offgrad.policies.base import (
    Offload,
    Placement,
    Policy,
    SaveContext,
)
from offgrad.policies.combined import lossless, part, recomputes
from offgrad.policies.names import as_nbytes, unknown
from offgrad.policies.patterns import enclosing, matches

Patterns = str | Sequence[str] | None

_DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True)
class When(Policy):
    """Answers as another policy where all conditions given hold, and has no answer elsewhere.

    Patterns are as in `ByModule`: ``*`` stands for any part of a name, ``?`` for one character.
    Several in a list are alternatives. What it leaves to `then` may still be too small for that:
    ``When("disk", op="Gelu")`` takes nothing below the 64 KiB of ``Offload("disk")``.

    The module is a fact as any other here: names count from the outermost module called, or from
    the session's ``model=``, and patterns are checked against nothing. `ByModule` does more: its
    patterns must match modules of the model, the innermost module that one matches decides, and
    sessions around and inside it keep their own modules.

    Attributes:
        then: the policy; whatever `as_policy` takes but mappings.
        op: names of nodes, with or without ``Backward0``: ``"Gelu"``, ``"*Norm*"``.
        slot: what it is to the node, such as ``"self"`` or ``"result"``.
        made_by: names of the nodes that made the tensor, as `op`; a leaf was made by none.
        dtype: dtypes, or patterns of their names: ``offgrad.float32``, ``"*float*"``.
        module: names of modules. A pattern speaks for the module and all below.
        min_nbytes, max_nbytes: bounds of the size, both included; bytes, or text as ``"1MiB"``.
        parameter: whether it is a parameter.
        output: whether the node itself made it; an input otherwise.

    Raises:
        ValueError: if a condition can never hold, as far as can be told.
        TypeError: if a condition is of the wrong type, or `then` no policy or one by module.
    """

    then: Any
    _: KW_ONLY
    op: Patterns = None
    slot: Patterns = None
    made_by: Patterns = None
    dtype: Any = None
    module: Patterns = None
    min_nbytes: int | str | None = None
    max_nbytes: int | str | None = None
    parameter: bool | None = None
    output: bool | None = None

    def __post_init__(self) -> None:
        def set_to(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        set_to("then", part(self.then))
        for name in ("op", "slot", "made_by", "module"):
            set_to(name, _patterns(name, getattr(self, name)))
        set_to("dtype", _dtype_patterns(self.dtype))
        for name in ("min_nbytes", "max_nbytes"):
            if getattr(self, name) is not None:
                set_to(name, as_nbytes(getattr(self, name)))
        for name in ("parameter", "output"):
            if not isinstance(getattr(self, name), bool | None):
                value = type(getattr(self, name)).__name__
                raise TypeError(f"{name} is True, False or None, got {value}")
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.max_nbytes is None:
            return
        least, most = as_nbytes(self.min_nbytes or 0), as_nbytes(self.max_nbytes)
        if isinstance(self.then, Offload):
            least = max(least, as_nbytes(self.then.min_nbytes))
        if most < least:
            raise ValueError(
                f"this would store nothing: no tensor is of at least {format_nbytes(least)} and at "
                f"most {format_nbytes(most)}. For what is small, give the policy its own bound, as "
                "in Offload('pool', min_nbytes=0)"
            )

    def place(self, context: SaveContext) -> Placement | None:
        """Return what `then` returns if all conditions hold; None otherwise."""
        placement: Placement | None = self.then.place(context) if self._holds(context) else None
        return placement

    def _holds(self, context: SaveContext) -> bool:
        return (
            (self.parameter is None or self.parameter == context.is_parameter)
            and (self.output is None or self.output == context.is_output)
            and (self.min_nbytes is None or context.nbytes >= as_nbytes(self.min_nbytes))
            and (self.max_nbytes is None or context.nbytes <= as_nbytes(self.max_nbytes))
            and (self.op is None or _speaks(self.op, context.op, _operation))
            and (self.slot is None or _speaks(self.slot, context.slot))
            and (self.made_by is None or _speaks(self.made_by, context.made_by, _operation))
            and (self.dtype is None or _speaks(self.dtype, context.dtype.name))
            and (self.module is None or _speaks(self.module, context.module, enclosing))
        )

    @property
    def lossless(self) -> bool:
        """As `then`."""
        return lossless(self.then)

    @property
    def recomputes(self) -> bool:
        """As `then`."""
        return recomputes(self.then)

    def __str__(self) -> str:
        conditions = [
            f"{words} {' or '.join(each or 'the model' for each in patterns)}"
            for words, patterns in (
                ("op is", self.op),
                ("slot is", self.slot),
                ("made by", self.made_by),
                ("dtype is", self.dtype),
                ("in", self.module),
            )
            if isinstance(patterns, tuple)
        ]
        if self.min_nbytes is not None:
            conditions.append(f"at least {format_nbytes(as_nbytes(self.min_nbytes))}")
        if self.max_nbytes is not None:
            conditions.append(f"at most {format_nbytes(as_nbytes(self.max_nbytes))}")
        if self.parameter is not None:
            conditions.append("a parameter" if self.parameter else "no parameter")
        if self.output is not None:
            conditions.append("an output" if self.output else "no output")
        return f"if {', '.join(conditions)}: {self.then}" if conditions else str(self.then)


def _patterns(name: str, given: Any) -> tuple[str, ...] | None:
    """Return the patterns given, one or several."""
    if given is None:
        return None
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, Iterable) or isinstance(patterns, Mapping | bytes):
        raise TypeError(f"{name} is a pattern or a list of them, got {type(given).__name__}")
    patterns = tuple(patterns)
    for each in patterns:
        if not isinstance(each, str):
            raise TypeError(f"a pattern for {name} is text, got {type(each).__name__}")
    if not patterns:
        raise ValueError(f"{name} needs a pattern at least, got none")
    if "" in patterns and name not in ("module", "made_by"):
        raise ValueError(f"no {name} has an empty name, but a pattern for it is empty: {given!r}")
    return patterns


def _dtype_patterns(given: Any) -> tuple[str, ...] | None:
    """Return the dtypes given, by name or pattern; each must be, or match, one there is."""
    if given is None:
        return None
    several = given if isinstance(given, list | tuple) else (given,)
    names = [each if isinstance(each, str) else dtype_name(each) for each in several]
    for name in names:
        if not any(matches(name, each) for each in _DTYPES):
            raise unknown("dtype", name, _DTYPES)
    return _patterns("dtype", names)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype.

    Raises:
        TypeError: if it is none.
    """
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise TypeError(f"a dtype, or a pattern of names of dtypes, not {dtype!r}") from None


def _operation(node: str) -> tuple[str, str]:
    """Return the names under which a node's operation is known: that of the node, and its own."""
    return node, re.sub(r"Backward\d*$", "", node)


def _itself(name: str) -> tuple[str]:
    return (name,)


# Every save asks, and the same few names come again and again.
@lru_cache(maxsize=4096)
def _speaks(patterns: Any, name: str, names: Callable[[str], Iterable[str]] = _itself) -> bool:
    """Return whether a pattern matches one of the names that a name stands for."""
    return any(matches(pattern, each) for each in names(name) for pattern in patterns)
