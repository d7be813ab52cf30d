"""The cost of importing offgrad, and its names."""

import os
import subprocess
import sys

import pytest

import offgrad

AT_FIRST_USE = (
    "concurrent.futures",
    "difflib",
    "hashlib",
    "importlib.metadata",
    "json",
    "logging",
    "numpy.random",
    "pathlib",
    "tempfile",
    "offgrad.autograd.functional",
    "offgrad.autograd.gradient_checks",
    "offgrad.func",
    "offgrad.kernels._chunks",
    "offgrad.kernels._softmax",
    "offgrad.nn.utils.parametrize",
    "offgrad.optim.sgd",
    "offgrad.policies",
    "offgrad.profiler",
    "offgrad.serialization",
    "offgrad.session.session",
    "offgrad.utils.checkpoint",
    "offgrad_storage.backend_store",
    "offgrad_storage.codecs",
    "offgrad_storage.zarr",
)
"""Modules that `import offgrad` does not load, because most programs do not use them, or late."""

MAX_MODULES = 290
"""The number of modules of offgrad's own that an ordinary program may import at its start."""


def _run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-Werror", "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_is_light() -> None:
    heavy = ("numba", "zarr", "matplotlib", "rich", "torch", "numcodecs", "psutil", "scipy")
    code = f"import sys, offgrad; print([name for name in {heavy!r} if name in sys.modules])"
    assert _run(code).strip() == "[]"


def test_import_leaves_rarely_used_modules_out() -> None:
    """They cost time, 1 ms for each and more; a program that uses them imports them then."""
    code = (
        "import sys, offgrad, offgrad.nn, offgrad.nn.functional, offgrad.optim\n"
        f"print([name for name in {AT_FIRST_USE!r} if name in sys.modules])\n"
        "print(sum(name.startswith('offgrad') for name in sys.modules))"
    )
    loaded, count = _run(code).splitlines()
    assert loaded == "[]"
    assert int(count) <= MAX_MODULES, "import what few programs use at its first use"


def test_a_frozen_program_without_sources_imports_all_at_once() -> None:
    code = (
        "import sys\n"
        "from importlib.machinery import SourceFileLoader as loader\n"
        "loader.get_source = lambda *_: None\n"
        "import offgrad\n"
        "assert 'offgrad_storage.zarr.store' in sys.modules\n"
        "print([name for name in offgrad.__all__ if name not in vars(offgrad)])"
    )
    assert _run(code).strip() == "[]"


def test_import_starts_no_threads_and_leaves_no_files() -> None:
    code = (
        "import threading, os, offgrad\nprint(threading.active_count(), offgrad.memory.allocated())"
    )
    assert _run(code).split() == ["1", "0"]


def test_dir_has_the_names_that_are_imported_at_first_use() -> None:
    code = (
        "import offgrad\n"
        "print(len({'amp', 'linalg', 'load', 'offload'} & set(dir(offgrad))), end=' ')\n"
        "print('Adam' in dir(offgrad.optim), 'prune' in dir(offgrad.nn.utils), end=' ')\n"
        "print('Adam' in vars(offgrad.optim))"
    )
    assert _run(code).split() == ["4", "True", "True", "False"]


def test_missing_name_says_that_it_may_be_pytorchs() -> None:
    with pytest.raises(AttributeError, match=r"'nonexistent'.*PyTorch .* has no"):
        offgrad.nonexistent
    assert not hasattr(offgrad, "cuda_is_here")


def test_public_names_exist() -> None:
    for module in (offgrad.nn, offgrad.nn.functional, offgrad.optim, offgrad.memory):
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"
    for name in vars(offgrad.ops):
        if name.startswith("_"):
            continue
        assert hasattr(offgrad, name), name


def test_pytorch_names() -> None:
    """`import offgrad as torch` has the names of ordinary code."""
    names = (
        "Tensor tensor zeros ones randn arange float32 float64 int64 bool no_grad enable_grad "
        "set_grad_enabled is_grad_enabled is_tensor manual_seed matmul cat stack where exp log "
        "softmax autograd nn optim from_numpy inf pi get_default_dtype set_default_dtype Generator"
    )
    for name in names.split():
        assert hasattr(offgrad, name), name
    for name in ("Function", "grad", "backward", "gradcheck", "gradgradcheck", "graph"):
        assert hasattr(offgrad.autograd, name), name
