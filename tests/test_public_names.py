"""Public modules hold their `__all__` and nothing else; other modules are marked as internal."""

import __future__

import importlib
import pkgutil
import re
import sys
from types import ModuleType

import pytest

FACES = (
    "offgrad",
    "offgrad.__future__",
    "offgrad.accelerator",
    "offgrad.amp",
    "offgrad.autograd",
    "offgrad.autograd.anomaly_mode",
    "offgrad.autograd.forward_ad",
    "offgrad.autograd.functional",
    "offgrad.autograd.graph",
    "offgrad.autograd.profiler",
    "offgrad.backends",
    "offgrad.backends.cpu",
    "offgrad.backends.cuda",
    "offgrad.backends.cudnn",
    "offgrad.backends.mha",
    "offgrad.backends.mkl",
    "offgrad.backends.mkldnn",
    "offgrad.backends.mps",
    "offgrad.backends.openmp",
    "offgrad.backends.opt_einsum",
    "offgrad.compat",
    "offgrad.compiler",
    "offgrad.cpu",
    "offgrad.cpu.amp",
    "offgrad.cuda",
    "offgrad.cuda.amp",
    "offgrad.cuda.nvtx",
    "offgrad.cuda.random",
    "offgrad.distributed",
    "offgrad.fft",
    "offgrad.func",
    "offgrad.functional",
    "offgrad.futures",
    "offgrad.fx",
    "offgrad.hub",
    "offgrad.jit",
    "offgrad.linalg",
    "offgrad.memory",
    "offgrad.mps",
    "offgrad.multiprocessing",
    "offgrad.nn",
    "offgrad.nn.einops",
    "offgrad.nn.attention",
    "offgrad.nn.attention.bias",
    "offgrad.nn.attention.flex_attention",
    "offgrad.nn.functional",
    "offgrad.nn.grad",
    "offgrad.nn.init",
    "offgrad.nn.parallel",
    "offgrad.nn.utils",
    "offgrad.nn.utils.rnn",
    "offgrad.onnx",
    "offgrad.optim",
    "offgrad.overrides",
    "offgrad.policies",
    "offgrad.prediction",
    "offgrad.profiler",
    "offgrad.quasirandom",
    "offgrad.random",
    "offgrad.return_types",
    "offgrad.checkpoint",
    "offgrad.serialization",
    "offgrad.session",
    "offgrad.signal",
    "offgrad.signal.windows",
    "offgrad.sparse",
    "offgrad.special",
    "offgrad.storage",
    "offgrad.testing",
    "offgrad.torch_version",
    "offgrad.types",
    "offgrad.utils",
    "offgrad.utils.benchmark",
    "offgrad.utils.checkpoint",
    "offgrad.utils.collect_env",
    "offgrad.utils.data",
    "offgrad.utils.deterministic",
    "offgrad.utils.dlpack",
    "offgrad.utils.hooks",
    "offgrad.utils.model_zoo",
    "offgrad.utils.safetensors",
    "offgrad.utils.tensorboard",
    "offgrad.version",
    "offgrad.xpu",
    "offgrad_storage",
    "offgrad_storage.codecs",
    "offgrad_storage.testing",
)


def import_all() -> dict[str, ModuleType]:
    """Import every module of both packages but `__main__`; return them by name."""
    found = {}
    for package in ("offgrad", "offgrad_storage"):
        found[package] = importlib.import_module(package)
        for each in pkgutil.walk_packages(found[package].__path__, f"{package}."):
            if not each.name.endswith(".__main__"):
                found[each.name] = importlib.import_module(each.name)
    return found


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    return import_all()


def is_submodule(module: ModuleType, name: str) -> bool:
    submodule = sys.modules.get(f"{module.__name__}.{name}")
    return submodule is not None and getattr(module, name, None) is submodule


@pytest.mark.parametrize("face", FACES)
def test_a_public_module_holds_all_and_nothing_else(
    face: str, modules: dict[str, ModuleType]
) -> None:
    """Submodules may be listed in `__all__` or not."""
    module = modules[face]
    listed = getattr(module, "__all__", None)
    assert listed is not None, f"{face} has no __all__"
    assert len(set(listed)) == len(listed), f"{face}.__all__ lists a name twice"
    unresolved = sorted(name for name in listed if not hasattr(module, name))
    assert not unresolved, f"{face}.__all__ lists names that do not exist: {unresolved}"
    held = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not is_submodule(module, name)
        and not isinstance(value, __future__._Feature)
    }
    expected = {name for name in listed if not is_submodule(module, name)}
    unlisted, missing = sorted(held - expected), sorted(expected - held)
    assert not unlisted, f"{face} holds public names that __all__ lacks: {unlisted}"
    assert not missing, f"{face}.__all__ lists names that are private or lazy: {missing}"


def test_no_attribute_shadows_a_submodule(modules: dict[str, ModuleType]) -> None:
    shadowed = []
    for name, module in modules.items():
        package, _, last = name.rpartition(".")
        if package and getattr(modules[package], last, module) is not module:
            shadowed.append(f"{name}: a {type(getattr(modules[package], last)).__name__}")
    assert not shadowed, "submodules hidden by an attribute:\n" + "\n".join(shadowed)


def test_other_modules_are_internal(modules: dict[str, ModuleType]) -> None:
    """By an underscore, or by "Internal" in the docstring of a package that they lie in."""

    def is_internal(name: str) -> bool:
        while name:
            if name.rpartition(".")[2].startswith("_"):
                return True
            if re.search(r"\bInternal\b", modules[name].__doc__ or ""):
                return True
            name = name.rpartition(".")[0]
        return False

    assert set(FACES) <= set(modules)
    unmarked: dict[str, list[str]] = {}
    for name in modules:
        if name not in FACES and not is_internal(name):
            package, _, last = name.rpartition(".")
            unmarked.setdefault(package, []).append(last)
    lines = [f"{package}: {', '.join(names)}" for package, names in unmarked.items()]
    assert not lines, "neither public nor marked as internal:\n" + "\n".join(lines)
