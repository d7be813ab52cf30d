"""The policies to compare, from text or from a TOML file."""

import tomllib
from pathlib import Path
from typing import Any

from offgrad.cli.compare.config import REFERENCE
from offgrad.policies import POLICIES, parse_policy
from offgrad.policies.rule_matches import check_ops


def read_policies(text: str) -> dict[str, str]:
    """Return policies by the names of their rows.

    Args:
        text: a list such as ``"keep,disk:lz4,min=1MiB,cast:float16"``, in which an item with ``=``
            is an option of the policy before it; or the path of a file ``*.toml``, in which
            ``policies`` is a table of policies by name, or a list of them.

    Raises:
        ValueError: for an invalid policy (see `parse_policy`), a repeated one, an empty list, or a
            file that cannot be read; the message is one line.
    """
    if text.strip().endswith(".toml"):
        policies = _read_file(Path(text.strip()))
    else:
        policies = _split(text)
    for name, policy in policies.items():
        if not name.strip() or not name.isprintable():
            raise ValueError(f"--policies: a name is text in one line, got {name!r}")
        try:
            check_ops(parse_policy(policy))
        except ValueError as error:
            where = "" if name == policy else f"--policies: {name!r}: "
            raise ValueError(f"{where}{error}") from None
    return policies


def _split(text: str) -> dict[str, str]:
    policies: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        if "=" in part and policies:
            policies[-1] += f",{part}"
        elif part:
            policies.append(part)
    if not policies:
        raise ValueError(f"--policies needs at least one of {', '.join(POLICIES)}")
    return _by_name(policies)


def _by_name(policies: list[str]) -> dict[str, str]:
    for policy in policies:
        if policies.count(policy) > 1:
            raise ValueError(f"--policies names {policy!r} twice")
    return {policy: policy for policy in policies}


def _read_file(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ValueError(f"--policies: {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--policies: {path} is not TOML: {error}") from None
    found: Any = content.get("policies")
    if isinstance(found, list) and found and all(isinstance(each, str) for each in found):
        return _by_name(found)
    if isinstance(found, dict) and found and all(isinstance(each, str) for each in found.values()):
        if found.get(REFERENCE, REFERENCE).strip() != REFERENCE:
            raise ValueError(
                f"--policies: {path}: {REFERENCE!r} is the name of the reference; give "
                f"{found[REFERENCE]!r} another"
            )
        return dict(found)
    raise ValueError(
        f'--policies: {path} needs policies = ["keep", "disk"], or a table [policies] with lines '
        'such as small = "disk,max=1MiB"'
    )
