"""`offgrad.show_config` names what decides the speed."""

import os
import subprocess
import sys

import pytest

import offgrad
from offgrad import kernels
from offgrad.cli.machine import describe_machine


def test_printed_and_as_dictionaries(capsys: pytest.CaptureFixture[str]) -> None:
    config = offgrad.show_config("dicts")
    assert config is not None
    assert config["Versions"]["numpy"]
    assert config["Threads"]["kernels"] == offgrad.get_num_threads()
    assert config["Kernels"]["backend"] == kernels.backend()
    assert os.path.isdir(config["Stores"]["spill directory"])
    assert offgrad.show_config() is None
    printed = capsys.readouterr().out
    for section, entries in config.items():
        assert f"{section}:" in printed
        for name in entries:
            assert f"  {name}: " in printed


def test_unknown_mode() -> None:
    with pytest.raises(ValueError, match=r"'stdout' or 'dicts', got 'yaml'"):
        offgrad.show_config("yaml")


def test_results_of_compare_name_the_kernels_of_blas() -> None:
    config = offgrad.show_config("dicts")
    assert config is not None
    assert config["BLAS"].get("kernels", "") in describe_machine()["blas"]


@pytest.mark.parametrize("numpy_first", [False, True])
def test_one_count_of_threads_for_kernels_and_blas(numpy_first: bool) -> None:
    code = (
        "import offgrad; before = offgrad.show_config('dicts')['Threads']; "
        "offgrad.set_num_threads(2); print(before, offgrad.show_config('dicts')['Threads'])"
    )
    result = subprocess.run(
        [sys.executable, "-Werror", "-c", ("import numpy; " if numpy_first else "") + code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OFFGRAD_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert result.stdout.strip() == "{'kernels': 1, 'BLAS': 1} {'kernels': 2, 'BLAS': 2}"
