"""The fixture `offload_benchmark`, in a suite of its own as users have it."""

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import offgrad, pytest

model = offgrad.nn.Sequential(offgrad.nn.Linear(64, 256), offgrad.nn.Tanh())
x = offgrad.randn(128, 64)

def step():
    model(x).sin().sum().backward()

def test_two_policies(offload_benchmark, tmp_path):
    figures = offload_benchmark(
        step, policies=["keep", "disk,min=100KiB"], rounds=3, directory=str(tmp_path)
    )
    keep, disk = figures["keep"], figures["disk,min=100KiB"]
    # Tanh's output and sin's input are the same array.
    assert disk["stored_nbytes"] == disk["read_nbytes"] == 128 * 256 * 4
    assert keep["stored_nbytes"] == keep["read_nbytes"] == 0
    assert keep["saved_nbytes"] == disk["saved_nbytes"] > 0
    assert keep["peak_nbytes"] > 0 < disk["seconds"]

def test_bad_policies(offload_benchmark):
    with pytest.raises(ValueError, match="did you mean disk"):
        offload_benchmark(step, policies=["dsk"])
    with pytest.raises(ValueError, match="none twice"):
        offload_benchmark(step, policies=["disk", "disk"])
    with pytest.raises(TypeError, match="a list, such as .'disk'.*, got text"):
        offload_benchmark(step, policies="disk")
    offload_benchmark(step, policies=["keep"])
"""

OTHERS = """
import sys
import pytest

def test_nothing_is_imported(request):
    assert "offgrad_pytest" in sys.modules
    assert not {"offgrad", "offgrad_storage"} & set(sys.modules)
    with pytest.raises(pytest.FixtureLookupError):
        request.getfixturevalue("offload_benchmark")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite beside which offgrad is installed, by the entry points of pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["pytest11"]
    installed = pytester.path / "installed" / "offgrad-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: offgrad\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed.parent), *sys.path]))
    # pytest-benchmark writes no figures in a worker of pytest-xdist.
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return pytester


@pytest.mark.slow
def test_figures_reach_extra_info_and_the_terminal(suite: pytest.Pytester) -> None:
    suite.makepyfile(TESTS)
    result = suite.runpytest_subprocess("--benchmark-json=figures.json", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*offload benchmarks*", "policy *median*peak*", "keep *", "disk,*"]
    )
    benchmarks = json.loads((suite.path / "figures.json").read_text())["benchmarks"]
    figures = {each["name"]: each["extra_info"]["offload"] for each in benchmarks}
    assert list(figures["test_two_policies"]) == ["keep", "disk,min=100KiB"]
    assert figures["test_two_policies"]["keep"]["seconds"] > 0


def test_other_suites_pay_nothing(suite: pytest.Pytester) -> None:
    suite.makepyfile(OTHERS)
    result = suite.runpytest_subprocess("-p", "no:benchmark")
    result.assert_outcomes(passed=1)
