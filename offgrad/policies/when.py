"""When: apply a policy only to saves that match all conditions."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from offgrad.memory import format_nbytes
from offgrad.policies.base import (
    Offload,
    Placement,
    SaveContext,
    Wrapper,
    nested_policy,
)
from offgrad.policies.names import as_nbytes, unknown_name
from offgrad.policies.op_names import is_known_op, is_known_slot, match_op, op_names
from offgrad.policies.patterns import enclosing, matches

Patterns = str | Sequence[str] | None

CONDITIONS = ("op", "slot", "made_by", "module")
"""The conditions that are patterns of names which only a run knows."""

_DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True, repr=False)
class When(Wrapper):
    """Applies another policy to tensors that match all conditions; has no answer for others.

    Patterns are as in `ByModule`: ``*`` stands for any part of a name, ``?`` for one character; the
    patterns of a list are alternatives. The other policy keeps its own conditions:
    ``When("disk", op="Gelu")`` stores no tensor below the 64 KiB of ``Offload("disk")``.

    Operations may be named as nodes, with or without ``Backward0``, or as the functions and modules
    that record them, in any case: ``"Gelu"``, ``"gelu"``, ``"LayerNorm"``, ``"native_layer_norm"``.
    A function's name stands for all operations it records: ``"linear"`` also matches the same
    products elsewhere. A session warns of patterns that matched no tensor.

    Names of modules count from the outermost module called, or from the session's ``model=``, and
    their patterns are not checked. `ByModule` does more: its patterns must match modules of the
    model, the innermost module that matches decides, and other sessions around and inside it keep
    their own modules.

    Attributes:
        then: the policy; in any form of `as_policy` but a mapping.
        op: names of the operations that save: ``"Gelu"``, ``"*Norm*"``.
        slot: names under which nodes save, such as ``"self"`` or ``"result"``.
        made_by: names of the operations that made the tensor, as `op`; ``""`` for a leaf.
        dtype: dtypes, or patterns of their names: ``offgrad.float32``, ``"*float*"``.
        module: names of modules. A pattern includes the modules below.
        min_nbytes, max_nbytes: bounds of the size, both included; bytes, or text as ``"1MiB"``.
        parameter: whether it is a parameter.
        output: whether it is an output of the node that saves it, not an input.

    Raises:
        ValueError: if a condition can never hold, as far as that is known.
        TypeError: if a condition is of the wrong type, or `then` no policy or one by module.

    Example:
        >>> policy = [When("disk", op=["*Norm*", "sin"]), When("pool", max_nbytes="1MiB")]
        >>> with offgrad.offload(policy):
        ...     offgrad.randn(256, 256, requires_grad=True).sin().sum().backward()
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

        set_to("then", nested_policy(self.then))
        for name in ("op", "slot", "made_by", "module"):
            set_to(name, _patterns(name, getattr(self, name)))
        _check_names(self)
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
        min_nbytes, max_nbytes = int(self.min_nbytes or 0), int(self.max_nbytes)
        if isinstance(self.then, Offload):
            min_nbytes = max(min_nbytes, int(self.then.min_nbytes))
        if max_nbytes < min_nbytes:
            raise ValueError(
                f"no tensor has at least {format_nbytes(min_nbytes)} and at most "
                f"{format_nbytes(max_nbytes)}, so this would store nothing. To store small "
                "tensors, lower the policy's own bound, as in Offload('pool', min_nbytes=0)"
            )

    def place(self, context: SaveContext) -> Placement | None:
        placement: Placement | None = self.then.place(context) if self._holds(context) else None
        return placement

    def _holds(self, context: SaveContext) -> bool:
        return (
            (self.parameter is None or self.parameter == context.is_parameter)
            and (self.output is None or self.output == context.is_output)
            and (self.min_nbytes is None or context.nbytes >= int(self.min_nbytes))
            and (self.max_nbytes is None or context.nbytes <= int(self.max_nbytes))
            and self.holds("op", context)
            and self.holds("slot", context)
            and self.holds("made_by", context)
            and (self.dtype is None or _match_any(self.dtype, context.dtype.name))
            and self.holds("module", context)
        )

    def holds(self, condition: str, context: SaveContext) -> bool:
        """Return whether one of `CONDITIONS` holds for a tensor."""
        patterns = getattr(self, condition)
        return patterns is None or _MATCHERS[condition](patterns, getattr(context, condition))

    def answers(self) -> list[tuple[str, str]]:
        return [(self._conditions() or "all", str(self.then))]

    def __str__(self) -> str:
        conditions = self._conditions()
        return f"if {conditions}: {self.then}" if conditions else str(self.then)

    def _conditions(self) -> str:
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
            conditions.append(f"at least {format_nbytes(int(self.min_nbytes))}")
        if self.max_nbytes is not None:
            conditions.append(f"at most {format_nbytes(int(self.max_nbytes))}")
        if self.parameter is not None:
            conditions.append("a parameter" if self.parameter else "no parameter")
        if self.output is not None:
            conditions.append("an output" if self.output else "no output")
        return ", ".join(conditions)


def _patterns(name: str, given: Any) -> tuple[str, ...] | None:
    """Return the patterns as a tuple."""
    if given is None:
        return None
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, Iterable) or isinstance(patterns, (Mapping, bytes)):
        raise TypeError(f"{name} is a pattern or a list of them, got {type(given).__name__}")
    patterns = tuple(patterns)
    for each in patterns:
        if not isinstance(each, str):
            raise TypeError(f"a pattern for {name} is text, got {type(each).__name__}")
    if not patterns:
        raise ValueError(f"{name} needs at least one pattern, got none")
    if "" in patterns and name not in ("module", "made_by"):
        raise ValueError(f"no {name} has an empty name, but a pattern for it is empty: {given!r}")
    return patterns


def _check_names(rule: When) -> None:
    """Raise for patterns that no node can match, whichever Functions the user may define."""
    for name in ("op", "made_by"):
        for pattern in getattr(rule, name) or ():
            # Nodes of user-defined Functions have no number at the end.
            if re.search(r"Backward\d+$", pattern) and not is_known_op(pattern):
                raise no_such_name(name, pattern, op_names().nodes)
    for pattern in rule.slot or ():
        if not is_known_slot(pattern):
            raise no_such_name("slot", pattern, op_names().slots)


def no_such_name(kind: str, pattern: str, known: Iterable[str]) -> ValueError:
    """Return the error for a name of an operation or slot that does not exist."""
    near = difflib.get_close_matches(pattern, sorted(known), cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return ValueError(
        f"no operation has the {kind} {pattern!r}; {meant}print(session.ledger) lists those of "
        "a run"
    )


def _dtype_patterns(given: Any) -> tuple[str, ...] | None:
    """Return the names or patterns of dtypes; each must match an existing dtype."""
    if given is None:
        return None
    several = given if isinstance(given, (list, tuple)) else (given,)
    names = [each if isinstance(each, str) else dtype_name(each) for each in several]
    for name in names:
        if not any(matches(name, each) for each in _DTYPES):
            raise unknown_name("dtype", name, _DTYPES)
    return _patterns("dtype", names)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype.

    Raises:
        TypeError: if it is not a dtype.
    """
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise TypeError(f"expected a dtype or a pattern of dtype names, got {dtype!r}") from None


def _itself(name: str) -> tuple[str]:
    return (name,)


# Called for every save, with few different names.
@lru_cache(maxsize=4096)
def _match_any(patterns: Any, name: str, names: Callable[[str], Iterable[str]] = _itself) -> bool:
    """Return whether a pattern matches one of the names derived from `name`."""
    return any(matches(pattern, each) for each in names(name) for pattern in patterns)


_MATCHERS: dict[str, Callable[[Any, str], bool]] = {
    "op": match_op,
    "slot": _match_any,
    "made_by": match_op,
    "module": partial(_match_any, names=enclosing),
}
