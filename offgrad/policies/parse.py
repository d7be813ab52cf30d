"""Policies from text, as on the command line: ``"disk:lz4,min=1MiB"``."""

from collections.abc import Callable
from typing import Any

from offgrad.policies.base import (
    Keep,
    Offload,
    Policy,
    Recompute,
    convert,
)
from offgrad.policies.budget import Budget, Last
from offgrad.policies.cast import Cast, rounded_only
from offgrad.policies.first import First
from offgrad.policies.names import STORES, as_nbytes, unknown_name
from offgrad.policies.when import When

Options = dict[str, str]
"""The ``KEY=VALUE`` pairs after ``NAME[:ARGUMENT]``."""


def parse_policy(text: str) -> Policy:
    """Return the policy given by text: ``NAME[:ARGUMENT][,KEY=VALUE]...``.

    - ``keep``
    - ``pool``, ``disk``, ``zarr``, with a codec or without, such as ``disk:lz4`` or
      ``zarr:blosc-lz4-bitshuffle``; ``min=SIZE`` is the size of the smallest stored tensors
    - ``cast:float16`` (or bfloat16, int8, int4); ``then=POLICY`` gives the store, ``min=SIZE`` as
      above
    - ``budget:512MiB``: the memory that tensors may hold; ``spill=STORE`` is for the rest
    - ``recompute``: outputs of cheap operations are recomputed; ``then=POLICY`` is for other
      tensors, ``min=SIZE`` is the size of the smallest recomputed tensors, ``ops=N`` the maximum
      number of operations for one
    - ``last:8``: the number of tensors that stay; ``then=POLICY`` is for the others, ``min=SIZE``
      as above

    Each takes the conditions of `When` as further options: ``op=``, ``slot=``, ``made_by=``,
    ``dtype=`` and ``module=`` are patterns, with ``|`` between alternatives, and ``max=SIZE`` is
    the size of the largest tensors: ``disk,op=Gelu|*Norm*,module=blocks.*``. With ``;`` between
    several policies the first with an answer decides, as in `First`: ``disk,op=Gelu;pool``.

    Raises:
        ValueError: in one line, with similar names.
    """
    alternatives = text.split(";")
    if len(alternatives) > 1:
        return First([parse_policy(each.strip()) for each in alternatives])
    head, *rest = text.split(",")
    name, colon, argument = head.partition(":")
    if name == "auto":
        raise ValueError(
            "auto is no policy as text: in a program write offload('auto', budget='512MiB'); "
            "offgrad tune finds a text from a recorded step"
        )
    if name not in _KINDS:
        raise unknown_name("policy", name, _KINDS)
    parse, keys = _KINDS[name]
    try:
        options = _options(rest, (*keys, *_CONDITIONS))
        conditions = {key: options.pop(key) for key in _CONDITIONS if key in options}
        policy = parse(name, argument if colon else None, options)
        return _when(policy, conditions) if conditions else policy
    except ValueError as error:
        raise ValueError(f"policy {text!r}: {error}") from None


def _when(policy: Policy, conditions: Options) -> Policy:
    max_nbytes = conditions.pop("max", None)
    patterns: dict[str, Any] = {key: each.split("|") for key, each in conditions.items()}
    return When(policy, **patterns, max_nbytes=max_nbytes)


def _options(parts: list[str], keys: tuple[str, ...]) -> Options:
    options: Options = {}
    for each in parts:
        key, equals, value = (part.strip() for part in each.partition("="))
        if not equals:
            raise ValueError(f"an option is KEY=VALUE, got {each!r}")
        if key not in keys:
            raise unknown_name("option", key, keys or ["none"])
        if key in options:
            raise ValueError(f"{key} is given twice")
        options[key] = value
    return options


def _keep(name: str, argument: str | None, options: Options) -> Policy:
    if argument is not None:
        raise ValueError("keep has no codec")
    return Keep()


def _offload(store: str, codec: str | None, options: Options) -> Policy:
    if "min" in options:
        return Offload(store, codec, as_nbytes(options["min"]))
    return Offload(store, codec)


def _cast(name: str, to: str | None, options: Options) -> Policy:
    if to is None:
        raise ValueError("cast needs a dtype, as in cast:float16")
    min_option = f",min={options['min']}" if "min" in options else ""
    if "then" in options:
        return Cast(to, parse_policy(options["then"] + min_option))
    return Cast(to, rounded_only(to, parse_policy("pool" + min_option)))


def _budget(name: str, nbytes: str | None, options: Options) -> Policy:
    if nbytes is None:
        raise ValueError("budget needs a size, as in budget:512MiB")
    return Budget(nbytes, options.get("spill", "disk"))


def _recompute(name: str, argument: str | None, options: Options) -> Policy:
    if argument is not None:
        raise ValueError("recompute takes only options, as in recompute,then=disk")
    max_ops = options.get("ops", str(Recompute.max_ops))
    if not max_ops.isdecimal():
        raise ValueError(f"ops is a number, got {max_ops!r}")
    policy = Recompute(int(max_ops), options.get("min", Recompute.min_nbytes))
    return First([policy, options["then"]]) if "then" in options else policy


def _last(name: str, count: str | None, options: Options) -> Policy:
    if count is None or not count.isdecimal():
        raise ValueError(f"last needs a number of tensors, as in last:8, got {count!r}")
    min_option = f",min={options['min']}" if "min" in options else ""
    return Last(int(count), parse_policy(options.get("then", "disk") + min_option))


_CONDITIONS = ("op", "slot", "made_by", "dtype", "module", "max")

_KINDS: dict[str, tuple[Callable[[str, str | None, Options], Policy], tuple[str, ...]]] = {
    "keep": (_keep, ()),
    **dict.fromkeys(STORES, (_offload, ("min",))),
    "cast": (_cast, ("then", "min")),
    "budget": (_budget, ("spill",)),
    "recompute": (_recompute, ("then", "min", "ops")),
    "last": (_last, ("then", "min")),
}
"""By name, the function that makes the policy, and its options."""

convert.register(str, parse_policy)
