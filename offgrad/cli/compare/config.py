"""The configuration of one group of runs, checked before any worker starts."""

from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

from offgrad.cli.compare.models import MODELS
from offgrad.memory import parse_nbytes

REFERENCE = "keep"
"""The policy whose gradients all others must equal."""

SIZES = ("layers", "width", "heads", "context", "image", "dropout")
"""The options of built-in models besides --batch and --lr."""


@dataclass(frozen=True)
class Config:
    """What is trained, and its limits, the same for all workers of a group.

    None for a size, `batch` or `lr` of a built-in model means its default.

    Attributes:
        target: a built-in model; the path of a script; or ``"package.module:name"``, a callable.
        arguments: of a script.
        layers: blocks or layers.
        width: features.
        heads: attention heads per block; a divisor of `width`.
        context: tokens or vectors per sequence.
        image: pixels of a side.
        dropout: probability from 0 to below 1.
        batch: samples per step; for a script or callable, None if it is not told.
        steps: training steps; the first is a warm-up and not in the median time.
        lr: learning rate of AdamW.
        seed: for weights, batches and dropout.
        memory_limit: maximum bytes of tensors; None for no limit.
        hard_limit: whether the operating system enforces the limit, too.

    Raises:
        ValueError: for invalid values; the message is one line.
    """

    target: str = "gpt"
    arguments: tuple[str, ...] = ()
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    context: int | None = None
    image: int | None = None
    dropout: float | None = None
    batch: int | None = None
    steps: int = 10
    lr: float | None = None
    seed: int = 0
    memory_limit: int | None = None
    hard_limit: bool = False

    def __post_init__(self) -> None:
        self._refuse_sizes_of_others()
        if self.is_model:
            self._fill_in()
        for name in ("layers", "width", "heads", "context", "image", "batch", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if self.seed < 0:
            raise ValueError(f"--seed must not be negative, got {self.seed}")
        if self.width and self.heads and self.width % self.heads:
            raise ValueError(
                f"--width must be a multiple of --heads, got {self.width} for {self.heads} heads"
            )
        if self.image and self.image % 4:
            raise ValueError(f"--image must be a multiple of 4, got {self.image}")
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"--dropout must be from 0 to below 1, got {self.dropout:g}")
        if self.lr is not None and not (isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"--lr must be positive, got {self.lr:g}")
        if self.hard_limit and self.memory_limit is None:
            raise ValueError("--hard-limit needs a --memory-limit, got none")

    @property
    def is_model(self) -> bool:
        """Whether a built-in model is trained."""
        return self.target in MODELS

    @property
    def is_script(self) -> bool:
        """Whether a script is trained."""
        return self.target.endswith(".py")

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of a built-in model, its batch included."""
        return {name: getattr(self, name) for name in (*MODELS[self.target].sizes, "batch")}

    def _refuse_sizes_of_others(self) -> None:
        known: Any = (*MODELS[self.target].sizes, "lr") if self.is_model else ()
        for name in (*SIZES, "lr"):
            if getattr(self, name) is not None and name not in known:
                what = f"the model {self.target}" if self.is_model else self.target
                raise ValueError(f"--{name} is no option of {what}")

    def _fill_in(self) -> None:
        model = MODELS[self.target]
        for name, value in (model.sizes | {"batch": model.batch, "lr": model.lr}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self) | {"arguments": list(self.arguments)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        """Return the config from its `as_dict`."""
        found = {each.name: values[each.name] for each in fields(cls)}
        return cls(**found | {"arguments": tuple(found["arguments"])})

    def __str__(self) -> str:
        """What is trained, in words."""
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        if not self.is_model:
            batch = "" if self.batch is None else f" of batch {self.batch}"
            return f"{' '.join([self.target, *self.arguments])}: {steps}{batch}"
        model, sizes = MODELS[self.target], self.sizes
        parts = [_words(name, sizes[name]) for name in model.sizes if name in _WORDS]
        samples = model.samples.format(**sizes)
        return f"{model.title}: {', '.join(parts)}; {steps} of {self.batch} {samples}"


_WORDS = {"layers": "{} layers", "width": "width {}", "heads": "{} heads"}


def _words(name: str, value: Any) -> str:
    return _WORDS[name].format(value)


def parse_limits(text: str) -> tuple[int | None, ...]:
    """Return the bytes of sizes such as ``"160MiB,200MiB"``; None for ``"none"``.

    Raises:
        ValueError: for an invalid size, or one that is there twice.
    """
    limits: list[int | None] = []
    for part in text.split(","):
        if part.strip().lower() == "none":
            limit = None
        else:
            try:
                limit = parse_nbytes(part.strip())
            except ValueError as error:
                raise ValueError(f"--memory-limit: {error}; none for no limit") from None
            if limit < 1:
                raise ValueError(f"--memory-limit must be positive, got {part.strip()}")
        if limit in limits:
            raise ValueError(f"--memory-limit names {part.strip()} twice")
        limits.append(limit)
    return tuple(limits)


def parse_batches(text: str | None) -> tuple[int | None, ...]:
    """Return the batch sizes of a list such as ``"8,16"``; one None for None.

    Raises:
        ValueError: for anything but whole numbers from 1 up, each once.
    """
    if text is None:
        return (None,)
    batches: list[int | None] = []
    for part in text.split(","):
        try:
            batch = int(part)
        except ValueError:
            raise ValueError(f"--batch takes whole numbers, got {part.strip()!r}") from None
        if batch < 1:
            raise ValueError(f"--batch must be at least 1, got {batch}")
        if batch in batches:
            raise ValueError(f"--batch names {batch} twice")
        batches.append(batch)
    return tuple(batches)
