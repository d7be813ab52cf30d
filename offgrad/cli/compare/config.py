"""The configuration of `offgrad compare`, checked before any worker starts."""

from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

from offgrad.memory import parse_nbytes
from offgrad.policies import POLICIES, parse_policy
from offgrad.policies.rule_matches import check_ops

REFERENCE = "keep"
"""The policy whose gradients all others must equal."""


@dataclass(frozen=True)
class Config:
    """Model, training and limits, the same for all workers.

    Attributes:
        layers: blocks of the GPT.
        width: features per token; a multiple of `heads`.
        heads: attention heads per block.
        context: tokens per sequence.
        batch: sequences per step.
        steps: training steps; the first is a warm-up and not in the median time.
        dropout: probability from 0 to below 1.
        lr: learning rate of AdamW.
        seed: for weights, batches and dropout.
        memory_limit: maximum bytes of tensors; None for no limit.
        hard_limit: whether the operating system enforces the limit, too.

    Raises:
        ValueError: for invalid values; the message is one line.
    """

    layers: int = 12
    width: int = 128
    heads: int = 4
    context: int = 256
    batch: int = 16
    steps: int = 10
    dropout: float = 0.1
    lr: float = 2e-3
    seed: int = 0
    memory_limit: int | None = parse_nbytes("160MiB")
    hard_limit: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context", "batch", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{_option(name)} must be at least 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"--seed must not be negative, got {self.seed}")
        if self.width % self.heads:
            raise ValueError(
                f"--width must be a multiple of --heads, got {self.width} for {self.heads} heads"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"--dropout must be from 0 to below 1, got {self.dropout:g}")
        if not (isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"--lr must be positive, got {self.lr:g}")
        if self.hard_limit and self.memory_limit is None:
            raise ValueError("--hard-limit needs a --memory-limit, got none")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        """Return the config from its `as_dict`."""
        return cls(**{each.name: values[each.name] for each in fields(cls)})


def parse_policies(text: str) -> tuple[str, ...]:
    """Return the policies of a list such as ``"keep,disk:lz4,min=1MiB,cast:float16"``.

    An item with ``=`` is an option of the policy before it.

    Raises:
        ValueError: for an invalid policy (see `parse_policy`), a repeated one, or an empty list.
    """
    policies: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        if "=" in part and policies:
            policies[-1] += f",{part}"
        elif part:
            policies.append(part)
    if not policies:
        raise ValueError(f"--policies needs at least one of {', '.join(POLICIES)}")
    for policy in policies:
        check_ops(parse_policy(policy))
        if policies.count(policy) > 1:
            raise ValueError(f"--policies names {policy!r} twice")
    return tuple(policies)


def parse_limit(text: str) -> int | None:
    """Return the bytes of a size such as ``"200MiB"``; None for ``"none"``.

    Raises:
        ValueError: for an invalid size.
    """
    if text.strip().lower() == "none":
        return None
    try:
        return parse_nbytes(text)
    except ValueError as error:
        raise ValueError(f"--memory-limit: {error}; none for no limit") from None


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
