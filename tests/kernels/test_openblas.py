"""OpenBLAS's kernels fit the CPU whatever was imported first, unless the user chose others."""

import os
import subprocess
import sys

import pytest

from offgrad.kernels import _openblas
from offgrad.kernels._openblas import fitting_core, is_slower

V2 = {"SSE3", "SSSE3", "SSE41", "POPCNT", "SSE42"}
V3 = V2 | {"AVX", "F16C", "FMA3", "AVX2"}

openblas = pytest.mark.skipif(
    _openblas.library() is None or fitting_core(_openblas.cpu_features()) is None,
    reason="needs NumPy with OpenBLAS, on a CPU with AVX2",
)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (set(), None),
        (V2, None),
        ({"X86_V2"}, None),
        (V3 - {"FMA3"}, None),
        (V3, "Haswell"),
        ({"X86_V2", "X86_V3"}, "Haswell"),
        # Some of the five extensions, as of Xeon Phi, are not enough.
        (V3 | {"AVX512F", "AVX512CD", "AVX512_KNL", "AVX512_KNM"}, "Haswell"),
        (V3 | {"AVX512F", "AVX512CD", "AVX512_SKX"}, "SkylakeX"),
        ({"X86_V2", "X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"}, "SkylakeX"),
        ({"NEON", "ASIMD", "SVE"}, None),
    ],
)
def test_kernels_fit_the_features(features: set[str], expected: str | None) -> None:
    assert fitting_core(features) == expected


@pytest.mark.parametrize(
    ("core", "than", "expected"),
    [
        ("Haswell", "SkylakeX", True),
        ("Zen", "SkylakeX", True),
        ("Prescott", "Haswell", True),
        ("SkylakeX", "SkylakeX", False),
        ("SkylakeX", "Haswell", False),
        ("Cooperlake", "SkylakeX", False),
        ("SapphireRapids", "SkylakeX", False),
        ("Zen", "Haswell", False),
        ("Prescott", None, False),
        ("neoversev1", "SkylakeX", False),
        ("a later kernel", "SkylakeX", False),
    ],
)
def test_only_fewer_instructions_are_slower(core: str, than: str | None, expected: bool) -> None:
    assert is_slower(core, than) is expected


def _run(code: str, **environment: str) -> str:
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")
    }
    result = subprocess.run(
        [sys.executable, "-Werror", "-c", code],
        env=variables | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# NumPy loads OpenBLAS with too simple kernels, which nobody asks for afterwards.
MISJUDGED = """
import os
os.environ["OPENBLAS_CORETYPE"] = "Nehalem"
import numpy as np
rng = np.random.default_rng(0)
a, b = rng.normal(size=(2, 300, 300))
expected = a @ b
del os.environ["OPENBLAS_CORETYPE"]
"""
CHECK = """
from offgrad.kernels import _openblas
assert np.allclose(a @ b, expected)
assert "OPENBLAS_CORETYPE" not in os.environ
print(_openblas.library().core(), _openblas.library().thread_timeout())
"""


@openblas
def test_kernels_and_sleeping_threads_where_numpy_was_first() -> None:
    fitting = fitting_core(_openblas.cpu_features())
    assert _run(MISJUDGED + "import offgrad" + CHECK) == f"{fitting} 16"


@openblas
def test_forks_work_after_a_change_of_kernels() -> None:
    code = """
import offgrad
child = os.fork()
if child == 0:
    os._exit(0 if np.allclose(a @ b, expected) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    fitting = fitting_core(_openblas.cpu_features())
    assert _run(MISJUDGED + code + CHECK) == f"{fitting} 16"


@openblas
def test_threads_that_wait_do_not_prevent_a_change() -> None:
    code = """
import threading
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
import offgrad
end.set()
thread.join()
"""
    fitting = fitting_core(_openblas.cpu_features())
    assert _run(MISJUDGED + code + CHECK) == f"{fitting} 16"


@openblas
def test_threads_that_compute_prevent_a_change_and_a_warning_says_so() -> None:
    code = """
import threading, warnings
end = threading.Event()
def compute():
    while not end.is_set():
        a @ b
thread = threading.Thread(target=compute)
thread.start()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import offgrad
end.set()
thread.join()
(message,) = [str(each.message) for each in caught if "OpenBLAS" in str(each.message)]
assert "OPENBLAS_CORETYPE=" in message and "before Python starts" in message, message
"""
    assert _run(MISJUDGED + code + CHECK) == "Nehalem 0"


@openblas
@pytest.mark.parametrize("numpy_first", [False, True])
def test_the_users_choice_stays_and_show_config_says_what_it_costs(numpy_first: bool) -> None:
    code = """
import offgrad
blas = offgrad.show_config("dicts")["BLAS"]
print(blas["kernels"], blas["thread timeout"])
assert "unset OPENBLAS_CORETYPE=Nehalem" in blas["remedy"]
"""
    code = ("import numpy\n" if numpy_first else "") + code
    chosen = {"OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_THREAD_TIMEOUT": "10"}
    assert _run(code, **chosen) == "Nehalem 10"


@openblas
def test_without_a_choice_the_kernels_fit() -> None:
    code = """
import offgrad
from offgrad.kernels import _openblas
blas = offgrad.show_config("dicts")["BLAS"]
fitting = _openblas.fitting_core(_openblas.cpu_features())
assert not _openblas.is_slower(blas["kernels"], than=fitting) and "remedy" not in blas
"""
    _run(code)
