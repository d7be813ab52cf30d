"""The built-in models of `offgrad compare`, written as for PyTorch: they also run on it.

Each file has a model with a method ``loss``, `build` to make it from its sizes, and `batch` to draw
a batch of it. A file here and a row in `MODELS` make a new one.
"""

import inspect
import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Model:
    """A built-in model.

    Attributes:
        module: the name of the module with its source.
        title: for people.
        sizes: the defaults of the sizes it has; further ones are not its options.
        batch: samples per step, by default.
        lr: learning rate, by default.
        samples: what a sample is.
        memory_limit: by default; None for no limit.
        tiny: sizes of a model that loads all that the large one needs.
    """

    module: str
    title: str
    sizes: dict[str, Any]
    batch: int
    lr: float
    samples: str
    tiny: dict[str, Any]
    memory_limit: str = "none"


_HERE = __name__

MODELS = {
    "gpt": Model(
        "offgrad.cli.compare.gpt",
        "GPT",
        {"layers": 12, "width": 128, "heads": 4, "context": 256, "dropout": 0.1},
        batch=16,
        lr=2e-3,
        samples="x {context} bytes",
        tiny={"layers": 1, "width": 64, "heads": 1, "context": 128, "batch": 8},
        memory_limit="160MiB",
    ),
    "resnet": Model(
        f"{_HERE}.resnet",
        "ResNet-18",
        {"width": 32, "image": 32},
        batch=32,
        lr=1e-3,
        samples="images of {image} x {image} pixels",
        tiny={"width": 16, "image": 16, "batch": 4},
    ),
    "lstm": Model(
        f"{_HERE}.lstm",
        "LSTM",
        {"layers": 2, "width": 256, "context": 128},
        batch=32,
        lr=1e-3,
        samples="sequences of {context} vectors",
        tiny={"layers": 1, "width": 32, "context": 8, "batch": 4},
    ),
    "mlp": Model(
        f"{_HERE}.mlp",
        "MLP",
        {"layers": 8, "width": 512, "dropout": 0.0},
        batch=4096,
        lr=1e-3,
        samples="vectors of {width} numbers",
        tiny={"layers": 2, "width": 64, "batch": 64},
    ),
    "vit": Model(
        f"{_HERE}.vit",
        "vision transformer",
        {"layers": 6, "width": 192, "heads": 3, "image": 32, "dropout": 0.0},
        batch=32,
        lr=1e-3,
        samples="images of {image} x {image} pixels",
        tiny={"layers": 1, "width": 48, "heads": 1, "image": 16, "batch": 4},
    ),
}


def load(name: str, library: str) -> Any:
    """Return the module of a built-in model; for ``"torch"`` its source, the imports changed."""
    module = import_module(MODELS[name].module)
    if library == "offgrad":
        return module
    source = inspect.getsource(module).replace("import offgrad as torch", "import torch")
    translated = ModuleType(f"{library}_{name}")
    sys.modules[translated.__name__] = translated  # dataclasses look their module up
    exec(source.replace("from offgrad", "from torch"), translated.__dict__)
    return translated
