"""What the examples of this folder share: the library, its arguments, and the same start on both.

Each example runs on offgrad, or with ``--torch`` on PyTorch: the very same lines. Weights, batches
and noise come from NumPy's generator, so that both print the same losses to about six digits.
"""

import argparse
import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

ON_TORCH = "--torch" in sys.argv
try:
    torch: Any = importlib.import_module("torch" if ON_TORCH else "offgrad")
except ModuleNotFoundError as error:
    print(f"{sys.argv[0]}: {error}; pip install {error.name}", file=sys.stderr)
    sys.exit(2)
nn, F = torch.nn, torch.nn.functional


def arguments(description: str | None, steps: int, batch: int) -> argparse.Namespace:
    """Return the command line's arguments: steps, batch, offload."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=_positive, default=steps, help="training steps")
    parser.add_argument("--batch", type=_positive, default=batch, help="samples of a step")
    parser.add_argument(
        "--offload",
        type=_policy,
        default="keep",
        metavar="POLICY",
        help="where tensors saved for backward go: keep, disk, zarr, recompute, budget:64MiB ...",
    )
    parser.add_argument("--torch", action="store_true", help="run on PyTorch, which must be there")
    return parser.parse_args()


def _positive(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, got {value}")
    return int(value)


def _policy(text: str) -> str:
    if not ON_TORCH:
        try:
            torch.policies.parse_policy(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def offload(policy: str) -> AbstractContextManager[Any]:
    """Return the context of a forward pass: a session under `policy`; on PyTorch an empty one."""
    return nullcontext() if ON_TORCH else torch.offload(policy)


def initialise(model: Any, seed: int = 0) -> Any:
    """Draw all weights of two dimensions and more, set biases to 0; return `model`.

    Weights are normal with variance 1 / inputs. Scales of normalisations keep their ones.
    """
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shape = tuple(parameter.shape)
            if len(shape) > 1:
                values = random.standard_normal(shape) / sqrt(np.prod(shape[1:]))
                parameter.copy_(torch.from_numpy(values.astype(np.float32)))
            elif "bias" in name:
                parameter.zero_()
    return model


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scikit-learn's 1,797 handwritten digits [N, 1, 8, 8] from 0 to 1, and labels [N]."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn") from None

    data = load_digits()
    images = data.images.astype(np.float32)[:, None] / 16
    return images, data.target.astype(np.int64)


def batches(
    *arrays: NDArray[Any], steps: int, batch: int, seed: int = 0
) -> Iterator[tuple[Any, ...]]:
    """Yield `steps` times the same random rows of each array, as tensors."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        rows = random.integers(0, len(arrays[0]), batch)
        yield tuple(torch.from_numpy(each[rows]) for each in arrays)


def report(step: int, **losses: Any) -> None:
    """Print the losses of a step."""
    values = "  ".join(f"{name} {value.item():.6f}" for name, value in losses.items())
    print(f"step {step:3d}  {values}", flush=True)
