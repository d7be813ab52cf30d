"""The pytest plugin of offgrad: the fixture ``offload_benchmark``, where pytest-benchmark is there.

pytest imports this module in every run on a machine that has offgrad, so it imports nothing else;
offgrad is imported when a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from offgrad_pytest.benchmark import OffloadBenchmark


def pytest_configure(config: pytest.Config) -> None:
    """Add the fixture, unless pytest-benchmark is missing or off."""
    if config.pluginmanager.hasplugin("benchmark"):
        config.pluginmanager.register(_Plugin(), "offgrad-benchmark")


class _Plugin:
    def __init__(self) -> None:
        self._lines: list[Callable[[], list[str]]] = []

    @pytest.fixture
    def offload_benchmark(self, benchmark: Any, request: pytest.FixtureRequest) -> OffloadBenchmark:
        """Time a training step under offload policies, with memory and bytes in ``extra_info``.

        ::

            def test_step(offload_benchmark):
                def step():
                    model(x).sum().backward()
                    model.zero_grad()

                figures = offload_benchmark(step, policies=["keep", "disk", "budget:64MiB"])
                assert figures["disk"]["peak_nbytes"] < figures["keep"]["peak_nbytes"]

        Called as ``offload_benchmark(step, policies, *, rounds=5, warmup_rounds=1,
        directory=None)``. `step` takes no arguments and does forward and backward; it runs inside
        ``offgrad.offload(policy, directory=directory)``. In each round every policy has its turn,
        in this order, so that other load on the machine slows all alike. So the time that
        pytest-benchmark reports is that of a round: of the step itself if there is one policy.

        Returns, and adds to ``benchmark.extra_info["offload"]``, by the text of the policy:
        "seconds" (the median) and "quartiles_seconds"; "peak_nbytes", the maximum of tensor memory
        in a step; and, per step, "saved_nbytes" for backward, "stored_nbytes" in stores,
        "written_nbytes" of them on disk, "read_nbytes" and "stall_seconds", the time for which
        computing waited. The figures of all tests are printed at the end of the run.

        Raises ValueError for an unknown policy, or one that is named twice.
        """
        from offgrad_pytest.benchmark import OffloadBenchmark

        made = OffloadBenchmark(benchmark)
        self._lines.append(lambda: made.lines(request.node.nodeid))
        return made

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = [line for each in self._lines for line in each()]
        if lines:
            terminalreporter.section("offload benchmarks")
            for line in lines:
                terminalreporter.write_line(line)
