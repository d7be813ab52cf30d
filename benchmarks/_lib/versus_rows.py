"""The rows of `benchmarks.bench_vs_torch`: what is measured, and the targets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPERATIONS = ("add", "mul", "matmul", "tanh")
MODES = {"recorded": 2.0, "unrecorded": 2.5, "under Python hooks": 2.0}
"""How operations run, each with its target."""
TOLERANCE = 2e-3
"""Largest distance of a gradient from torch's, by its norm."""

TENTH = ", a tenth"
"""Suffix of measures of a chain a tenth as long, which show whether the time grows linearly."""


@dataclass(frozen=True)
class Row:
    """What is measured, and the most that it may take, times torch.

    Attributes:
        name: the row's name in tables and for ``--only``.
        job: the name of a class in `benchmarks._lib.versus_worker`.
        sizes: the arguments of that class.
        targets: measures, each with the most seconds it may take, times torch's; None for no
            target.
        peak: target of peak memory, times torch's; None for no target.
        has_peak: whether peak memory is measured.
        compiles: whether torch.compile is measured, too.
        uses_threads: whether it is measured for each number of threads, or for the first only.
        tolerance: largest distance of a gradient from torch's, by its norm.
    """

    name: str
    job: str
    sizes: Mapping[str, Any]
    targets: Mapping[str, float | None]
    peak: float | None = None
    has_peak: bool = True
    compiles: bool = False
    uses_threads: bool = True
    tolerance: float = TOLERANCE


def _gpt(name: str, sizes: str, dropout: float, time: float, peak: float) -> Row:
    numbers = _gpt_sizes(sizes)
    return Row(
        f"{name}, dropout {dropout:g}",
        "GPTSteps",
        {**numbers, "dropout": dropout},
        {"step": time},
        peak,
        compiles=True,
    )


def _gpt_sizes(text: str) -> dict[str, int]:
    names = "layers", "width", "heads", "context", "batch"
    return dict(zip(names, map(int, text.split()), strict=True))


_BFLOAT16_TOLERANCE = 5e-2  # its numbers have two digits and a half

ROWS = (
    _gpt("GPT 6x512", "6 512 8 512 4", 0.1, 0.40, 0.50),
    _gpt("GPT 6x512", "6 512 8 512 4", 0.0, 0.45, 0.70),
    _gpt("GPT 12x768", "12 768 12 1024 1", 0.1, 0.35, 0.50),
    _gpt("GPT of compare", "12 128 4 256 16", 0.1, 0.55, 0.45),
    _gpt("GPT of compare", "12 128 4 256 16", 0.0, 0.80, 0.75),
    Row(
        "GPT 6x512, bfloat16",
        "GPTSteps",
        {**_gpt_sizes("6 512 8 512 4"), "dropout": 0.0, "autocast": "bfloat16"},
        {"step": None},
        compiles=True,
        tolerance=_BFLOAT16_TOLERANCE,
    ),
    Row(
        "GPT 6x512, products of high precision",
        "GPTSteps",
        {**_gpt_sizes("6 512 8 512 4"), "dropout": 0.0, "precision": "high"},
        {"step": None},
    ),
    Row(
        "MLP 784-2048-2048-10",
        "MLPSteps",
        {"widths": [784, 2048, 2048, 10], "batch": 512},
        {"step": 0.45},
        0.80,
        compiles=True,
    ),
    Row(
        "MLP, products of high precision",
        "MLPSteps",
        {"widths": [784, 2048, 2048, 10], "batch": 512, "precision": "high"},
        {"step": None},
    ),
    Row(
        "10x10 operation",
        "Operations",
        {},
        {f"{op} {mode}": most for op in OPERATIONS for mode, most in MODES.items()},
        has_peak=False,
        uses_threads=False,
    ),
    Row(
        "small models",
        "SmallModels",
        {},
        dict.fromkeys(("MLP", "CNN", "LSTM", "transformer layer")),
        has_peak=False,
        uses_threads=False,
    ),
    Row(
        "module call",
        "ModuleCalls",
        {},
        {
            "without hooks": 0.3,
            "with a forward hook": 1.2,
            "with a forward pre-hook": None,
            "in a session": None,
        },
        has_peak=False,
        uses_threads=False,
    ),
    Row(
        "chain of 100,000 nodes",
        "Chain",
        {"nodes": 100_000},
        {"forward": 2.0, "backward": 2.0, "free": 2.0},
        1.0,
        uses_threads=False,
    ),
)
"""All rows, in the order of the table."""


def _model(name: str, time: float, sizes: dict[str, Any], tiny: dict[str, Any]) -> Row:
    # One in a million rectifiers flips with a rounding error, and changes gradients by the root of
    # their share.
    return Row(
        name,
        "ModelSteps",
        {**sizes, "tiny": tiny},
        {"step": time},
        compiles=True,
        tolerance=1e-2,
    )


MODEL_ROWS = (
    _model(
        "ResNet-18, 64 images of 32x32",
        1.3,
        {"model": "resnet18", "batch": 64, "image": 32},
        {"batch": 4, "image": 8},
    ),
    _model(
        "LSTM 2x512, 32 sequences of 128",
        1.0,
        {"model": "lstm", "batch": 32, "steps": 128, "width": 512, "layers": 2},
        {"steps": 8, "width": 64},
    ),
    _model(
        "ViT-tiny, 64 images of 32x32",
        0.75,
        {"model": "vit", "batch": 64, "image": 32},
        {"batch": 4, "image": 8},
    ),
    _model(
        "U-Net, 8 images of 64x64",
        1.3,
        {"model": "unet", "batch": 8, "image": 64, "width": 32},
        {"batch": 2, "image": 16, "width": 8},
    ),
)
"""The rows of `benchmarks.bench_models`."""
