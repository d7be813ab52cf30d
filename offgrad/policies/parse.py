"""Policies from text, as on the command line: ``"disk:lz4,min=1MiB"``."""

from collections.abc import Callable
from typing import Any

from offgrad.policies.base import (
    Keep,
    Offload,
    Policy,
    Recompute,
    as_policy,
)
from offgrad.policies.budget import Budget, Last
from offgrad.policies.cast import Cast, in_memory
from offgrad.policies.first import First
from offgrad.policies.names import as_nbytes, unknown
from offgrad.policies.when import When

Options = dict[str, str]
"""What stands behind ``NAME[:ARGUMENT]``, by key."""


def parse_policy(text: str) -> Policy:
    """Return the policy that text means: ``NAME[:ARGUMENT][,KEY=VALUE]...``.

    - ``keep``
    - ``pool``, ``disk``, ``zarr``, with a codec or without, such as ``disk:lz4`` or
      ``zarr:blosc-lz4-bitshuffle``; ``min=SIZE`` is the size of the smallest tensors that go there
    - ``cast:float16`` (or bfloat16, int8, int4); ``then=POLICY`` says where to, ``min=SIZE`` as
      above
    - ``budget:512MiB``: so much stays in memory; ``spill=STORE`` says where the rest goes
    - ``recompute``: what cheap operations made is computed again; ``then=POLICY`` says where the
      rest goes, ``min=SIZE`` is the size of the smallest tensors recomputed, ``ops=N`` the most
      operations to be run for one
    - ``last:8``: the last so many stay; ``then=POLICY`` says where the others go, ``min=SIZE`` as
      above

    Further options of any of them are conditions, as of `When`: ``op=``, ``slot=``, ``made_by=``,
    ``dtype=`` and ``module=`` are patterns, with ``|`` between alternatives, and ``max=SIZE`` is
    the size of the largest tensors: ``disk,op=Gelu|*Norm*,module=blocks.*``. With ``;`` between
    several policies the first that has an answer counts, as of `First`: ``disk,op=Gelu;pool``.

    Raises:
        ValueError: in one line, with what is known, and near.
    """
    alternatives = text.split(";")
    if len(alternatives) > 1:
        return First([parse_policy(each.strip()) for each in alternatives])
    head, *rest = text.split(",")
    name, colon, argument = head.partition(":")
    if name not in _KINDS:
        raise unknown("policy", name, _KINDS)
    parse, keys = _KINDS[name]
    try:
        options = _options(rest, (*keys, *_CONDITIONS))
        conditions = {key: options.pop(key) for key in _CONDITIONS if key in options}
        policy = parse(name, argument if colon else None, options)
        return _when(policy, conditions) if conditions else policy
    except ValueError as error:
        raise ValueError(f"policy {text!r}: {error}") from None


def _when(policy: Policy, conditions: Options) -> Policy:
    largest = conditions.pop("max", None)
    patterns: dict[str, Any] = {key: each.split("|") for key, each in conditions.items()}
    return When(policy, **patterns, max_nbytes=largest)


def _options(parts: list[str], keys: tuple[str, ...]) -> Options:
    options: Options = {}
    for each in parts:
        key, equals, value = (part.strip() for part in each.partition("="))
        if not equals:
            raise ValueError(f"an option is KEY=VALUE, got {each!r}")
        if key not in keys:
            raise unknown("option", key, keys or ["none"])
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
        raise ValueError("say to what, as in cast:float16")
    smallest = f",min={options['min']}" if "min" in options else ""
    if "then" in options:
        return Cast(to, parse_policy(options["then"] + smallest))
    return Cast(to, in_memory(to, parse_policy("pool" + smallest)))


def _budget(name: str, nbytes: str | None, options: Options) -> Policy:
    if nbytes is None:
        raise ValueError("say how much, as in budget:512MiB")
    return Budget(nbytes, options.get("spill", "disk"))


def _recompute(name: str, argument: str | None, options: Options) -> Policy:
    if argument is not None:
        raise ValueError("recompute takes options alone, such as recompute,then=disk")
    most = options.get("ops", str(Recompute.max_ops))
    if not most.isdecimal():
        raise ValueError(f"ops is a number, got {most!r}")
    smallest = options.get("min", Recompute.min_nbytes)
    policy = Recompute(int(most), as_nbytes(smallest))
    return First([policy, options["then"]]) if "then" in options else policy


def _last(name: str, count: str | None, options: Options) -> Policy:
    if count is None or not count.isdecimal():
        raise ValueError(f"say how many stay, as in last:8, got {count!r}")
    smallest = f",min={options['min']}" if "min" in options else ""
    return Last(int(count), parse_policy(options.get("then", "disk") + smallest))


_CONDITIONS = ("op", "slot", "made_by", "dtype", "module", "max")

_KINDS: dict[str, tuple[Callable[[str, str | None, Options], Policy], tuple[str, ...]]] = {
    "keep": (_keep, ()),
    "pool": (_offload, ("min",)),
    "disk": (_offload, ("min",)),
    "zarr": (_offload, ("min",)),
    "cast": (_cast, ("then", "min")),
    "budget": (_budget, ("spill",)),
    "recompute": (_recompute, ("then", "min", "ops")),
    "last": (_last, ("then", "min")),
}
"""By name, what makes the policy, and the options it has."""

as_policy.register(str, parse_policy)
