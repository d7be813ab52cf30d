from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels import _jit
from offgrad.kernels._jit import uses_numba

RUN = """
import sys, numpy as np
from offgrad import kernels
assert "numba" not in sys.modules and "threadpoolctl" not in sys.modules
x = np.linspace(-3, 3, 50, dtype=np.float32).reshape(5, 10)
out = np.empty_like(x)
kernels.softmax(x, out)
assert np.allclose(out.sum(axis=1), 1)
kernels.softmax(x, out)
print(kernels.backend(), "numba" in sys.modules)
"""
WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None\n"


STEP = """
import hashlib, offgrad
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.kernels._jit import loops
offgrad.manual_seed(0)
model = GPT(GPTConfig(layers=2, width=64, heads=2, context=100, dropout=0.1))
tokens = offgrad.randint(0, 256, (2, 101))
model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.grad.numpy().tobytes())
print(sum(each.counts()[0] for each in loops), digest.hexdigest())
"""


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_numba_is_imported_at_the_first_call_and_not_before() -> None:
    result = _python(RUN, OFFGRAD_KERNELS="numba")
    assert result.stdout.split() == ["numba", "True"], result.stderr


def test_the_numpy_backend_needs_no_numba() -> None:
    result = _python(
        WITHOUT_NUMBA + RUN.replace('"numba" not', '"numba" '), OFFGRAD_KERNELS="numpy"
    )
    assert result.stdout.split()[0] == "numpy", result.stderr
    assert result.stderr == ""


def test_without_numba_one_warning_says_the_fix() -> None:
    program = WITHOUT_NUMBA + RUN.replace('"numba" not', '"numba" ')
    result = _python(program, OFFGRAD_KERNELS="numba")
    assert result.stdout.split()[0] == "numpy", result.stderr
    assert result.stderr.count("RuntimeWarning: numba cannot be imported") == 1
    assert "OFFGRAD_KERNELS=numpy" in result.stderr


def test_an_unknown_backend_is_refused() -> None:
    result = _python(RUN, OFFGRAD_KERNELS="cuda")
    assert "kernels run on numba or numpy, got 'cuda'" in result.stderr
    with pytest.raises(ValueError, match="got 'c'"):
        kernels.set_backend("c")


def test_only_float32_and_float64_are_compiled_for() -> None:
    kernels.set_backend("numba")
    arrays = {name: np.empty(2, name) for name in ("f2", "f4", "f8", ">f4", "i4")}
    assert [name for name, array in arrays.items() if uses_numba(array)] == ["f4", "f8"]
    assert not uses_numba(arrays["f4"], arrays["f2"])
    kernels.set_backend("numpy")
    assert not uses_numba(arrays["f4"])


def _outer(x: Any) -> Any:
    return _inner(x) + 1


def _inner(x: Any) -> Any:
    return x


def _changed(x: Any) -> Any:
    return x + 2


def _loop(x: Any) -> Any:
    return _outer(x)


def test_compiled_loops_are_cached_under_a_name_that_follows_their_helpers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def name(**float32: Callable[..., Any]) -> str:
        helpers = {globals()[f"_{key}"]: body for key, body in float32.items()}
        monkeypatch.setattr(_jit, "_helpers", helpers)
        return _jit._named_after_helpers(_loop).__qualname__

    plain = name(outer=_outer, inner=_inner)
    assert plain.startswith("_loop_")
    assert name(inner=_inner, outer=_outer) == plain
    assert name(outer=_outer, inner=_inner, changed=_changed) == plain, "it does not call that one"
    assert name(outer=_changed, inner=_inner) != plain
    assert name(outer=_outer, inner=_changed) != plain, "a helper of a helper"


@pytest.mark.slow
def test_loops_give_the_same_bits_compiled_and_from_the_cache(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    compiled, first = _python(STEP, **cache).stdout.split()
    loaded, second = _python(STEP, **cache).stdout.split()
    assert int(compiled) >= 10
    assert int(loaded) == 0
    assert first == second


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_pauses_while_a_loop_is_compiled(enabled: bool) -> None:
    event = pytest.importorskip("numba.core.event")
    kernels.set_backend("numba")
    seen: list[bool] = []

    class Listener(event.Listener):  # type: ignore[misc,name-defined]
        def on_start(self, _: Any) -> None:
            seen.append(gc.isenabled())

        def on_end(self, _: Any) -> None: ...

    def loop(x: Any) -> Any:
        return x + 1

    kernel = _jit.Kernel(loop)
    _jit.loops.remove(kernel)
    try:
        gc.enable() if enabled else gc.disable()
        with event.install_listener("numba:compiler_lock", Listener()):
            assert kernel(1) == 2
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert seen
    assert not any(seen)


def test_a_helpers_name_tells_which_functions_it_calls() -> None:
    """A loop that was cached before the change is not loaded."""
    digests = set()
    for name in ("sqrt", "cos"):
        code = f"def loop(x):\n    return math.{name}(x) + (lambda y: math.{name}(y))(x)"
        names: dict[str, Any] = {"math": math}
        exec(code, names)
        digests.add(_jit._helpers_digest(names["loop"], names["loop"]))
        assert _jit._helpers_digest(names["loop"], names["loop"]) in digests
    assert len(digests) == 2


HELPER = """
def helper(x):
    if x < 0:
        raise ValueError("negative", x)
    return x * x + 3
def square(x):
    return helper(x)
def cube(x):
    return helper(helper(x)) * x
"""


def test_a_helper_has_machine_code_only_within_the_loops_that_call_it() -> None:
    pytest.importorskip("numba")
    from offgrad.kernels import _compilers

    if not _jit.compiles():
        pytest.skip("nothing is compiled")
    names: dict[str, Any] = {}
    exec(HELPER, names)
    _compilers.overload(names["helper"], lambda _: names["helper"])
    for name in ("square", "cube"):
        kernel = _jit.Kernel(names[name])
        _jit.loops.remove(kernel)
        assert kernel(2.0) == names[name](2.0)
        compiled: Any = kernel._compiled
        (overload,) = compiled.overloads.values()
        library = overload.library
        helpers = [
            function.name
            for linked in library._linking_libraries
            for function in linked.get_defined_functions()
            if "helper" in function.name
        ]
        assert helpers
        assert not any(map(library.codegen._engine.is_symbol_defined, helpers))
        functions = library.get_defined_functions()
        shared = [each.name for each in functions if each.linkage.name != "internal"]
        assert shared
        assert all(name in each for each in shared), "no loop uses another's copy of a helper"
        with pytest.raises(ValueError, match="negative") as raised:
            kernel(-1.0)
        assert raised.value.args == ("negative", -1.0)
