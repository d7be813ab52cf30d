"""How much time, I/O and memory does offloading cost per training step?

    pytest benchmarks/bench_sessions.py -s

Each part is a test for each model, a GPT and a ResNet-18 for images of CIFAR's size:

- ``-k step_time``: a step under each policy compared with offgrad's `keep`, and under PyTorch's
  disk hooks and checkpoints compared with PyTorch's `keep`;
- ``-k bytes``: the bytes written, compared with the bytes passed to naive hooks;
- ``-k bound``: the memory used;
- ``-k bandwidth``: a step compared with the longer of computing and moving its bytes at the disk's
  bandwidth, measured by a bare loop of direct writes and reads in the same rounds;
- ``-k curve``: throughput and peak memory at several batch sizes, as a table and a plot;
- ``-k largest``: the largest batch that trains within a memory limit.

The first four evaluate one measurement, in which all variants take turns step by step, each in its
own process. Medians are printed with quartiles; no time is asserted. The variants are listed in
`benchmarks._lib.session_variants`. Environment variables configure the run:

- OFFGRAD_BENCH_GPT="layers width heads context batch dropout", OFFGRAD_BENCH_RESNET="width batch"
- OFFGRAD_BENCH_ONLY="offgrad disk; torch disk": these variants, and the two that keep everything
- OFFGRAD_BENCH_ROUNDS: the number of rounds, without the warm-up round
- OFFGRAD_BENCH_BATCHES_GPT, OFFGRAD_BENCH_BATCHES_RESNET: the batch sizes of the curve
- OFFGRAD_BENCH_PLOT: a PNG file for the curve; `offgrad compare --curve` draws one, too
- OFFGRAD_BENCH_LIMIT: the memory limit of the largest batch
- OFFGRAD_BENCH_JSON: a file that receives all figures; figures of other parts stay in it
- OFFGRAD_BENCH_SESSIONS=quick: tiny models, few rounds, and mostly one process per framework, as a
  check that the benchmark works; its figures mean little.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks._lib.largest_batch import largest_batch
from benchmarks._lib.session_steps import (
    LIMIT,
    MIB,
    QUICK,
    ROUNDS,
    Processes,
    Steps,
    measure,
    models,
    peak_of,
    saved_nbytes_of,
)
from benchmarks._lib.session_variants import KEEP, TORCH_KEEP, budget_of, has_torch, variants
from benchmarks._lib.training_turns import Figures, quartiles
from offgrad.cli.compare.curve import save_curves
from offgrad.memory import parse_nbytes

pytestmark = pytest.mark.timeout(3600)  # the set-up of one test runs all rounds

LEFT_OUT = {
    "pool", "zarr", "disk, lz4", "bfloat16", "disk, bfloat16", "checkpoint, disk", "budget 50%",
    "budget 10%",
}  # fmt: skip
"""Not in the plot: their lines coincide with those of variants that are."""


@pytest.fixture(scope="module", params=models(), ids=lambda model: model.name)
def processes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Processes]:
    """The workers of each model in turn."""
    made = Processes(request.param, tmp_path_factory.mktemp("spill"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def steps(processes: Processes) -> Steps:
    """The measurement that all parts but the last two evaluate."""
    found = measure(processes)
    processes.stop()
    return found


@pytest.fixture
def record() -> Iterator[dict[str, Any]]:
    """The contents of the file of figures; a part replaces its own older figures."""
    path = Path(os.environ.get("OFFGRAD_BENCH_JSON", os.devnull))
    figures: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    yield figures
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _title(processes: Processes, text: str, batch: int | None = None) -> None:
    at = "" if batch is None else f"; batch {batch}"
    print(f"\n{text}: {processes.model.title}{at}")


def test_step_time(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Compare each framework's variants with its own `keep`."""
    _title(processes, "step time", processes.model.batch)
    rows: dict[str, Any] = {}
    record[f"step_time {processes.model.name}"] = rows
    for name in steps.replies:
        base = KEEP if name.startswith("offgrad") else TORCH_KEEP
        ratios = [
            own / base_seconds
            for own, base_seconds in zip(steps.seconds(name), steps.seconds(base), strict=True)
        ]
        low, median, high = quartiles(steps.seconds(name))
        rows[name] = {
            "median_seconds": median,
            "quartiles_seconds": [low, high],
            "ratio_to_keep": quartiles(ratios)[1],
            "quartiles_ratio": [quartiles(ratios)[0], quartiles(ratios)[2]],
            "overhead_seconds": median - steps.median(base),
            "peak_rss_nbytes": steps.replies[name][-1]["peak_rss_nbytes"],
            "peak_over_base_nbytes": steps.replies[name][-1]["peak_over_base_nbytes"],
            "loss_of_last_step": steps.replies[name][-1]["loss"],
        }
        print(
            f"  {name:24} {median:8.3f} s ({low:.3f} to {high:.3f}), "
            f"{rows[name]['ratio_to_keep']:5.2f} of {base} "
            f"({quartiles(ratios)[0]:.2f} to {quartiles(ratios)[2]:.2f}), "
            f"{rows[name]['overhead_seconds']:+.3f} s, "
            f"{rows[name]['peak_over_base_nbytes'] / MIB:.0f} MiB resident"
        )
    if "torch disk" in rows:
        _compare_overheads(rows)


def _compare_overheads(rows: dict[str, Any]) -> None:
    torch_part = rows["torch disk"]["ratio_to_keep"] - 1
    for name in ("offgrad disk", "offgrad zarr"):
        if name not in rows:
            continue
        part = rows[name]["ratio_to_keep"] - 1
        rows[name]["overhead_to_that_of_torch_disk"] = part / torch_part
        print(
            f"  overhead of {name} over keep {part:.1%}, of torch disk {torch_part:.1%}: "
            f"ratio {part / torch_part:.3f}"
        )


def test_bytes(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Compare the bytes written with those of hooks that write every tensor passed to them."""
    batch = processes.model.batch
    naive = {}
    for framework in ("offgrad", "torch") if has_torch() else ("offgrad",):
        naive[framework] = processes.step(f"{framework} naive", batch)["packed_nbytes"]
    processes.stop()
    _title(processes, "bytes per step", processes.model.batch)
    rows: dict[str, Any] = {"naive": naive}
    record[f"bytes {processes.model.name}"] = rows
    for framework, nbytes in naive.items():
        print(f"  {framework:7} passes {nbytes / MIB:8.1f} MiB to hooks")
    print(f"  keep saves {steps.saved_nbytes / MIB:.1f} MiB, each byte once, without parameters")
    for name in steps.replies:
        written = steps.per_step(name, "written_nbytes")
        rows[name] = {
            "written_nbytes": written,
            "part_of_naive": {each: written / nbytes for each, nbytes in naive.items()},
        }
        parts = ", ".join(f"{written / nbytes:6.1%} of {each}'s" for each, nbytes in naive.items())
        print(f"  {name:24} writes {written / MIB:8.1f} MiB, {parts}")


def test_bound(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Tensor memory: the peak of a step, the peak of its forward pass, and the rest after it.

    During forward, memory holds the results of the running op besides the saved tensors.
    """
    _title(processes, "memory of a step", processes.model.batch)
    rows: dict[str, Any] = {}
    record[f"bound {processes.model.name}"] = rows
    keep_peak = peak_of(steps.replies[KEEP])
    for name in steps.offgrad():
        replies = steps.replies[name][1:]
        peak = peak_of(replies)
        left, forward = (
            max(reply[figure] - reply["begin_nbytes"] for reply in replies)
            for figure in ("forward_nbytes", "forward_peak_nbytes")
        )
        rows[name] = {
            "peak_nbytes": peak,
            "part_of_keep": peak / keep_peak,
            "above_begin_nbytes": peak - replies[-1]["begin_nbytes"],
            "after_forward_nbytes": left,
            "most_in_forward_nbytes": forward,
        }
        line = (
            f"  {name:24} peak {peak / MIB:8.1f} MiB, {peak / keep_peak:6.1%} of keep's; "
            f"above the start of the step, peak {forward / MIB:.1f} MiB in forward, "
            f"{left / MIB:.1f} MiB after it"
        )
        bound = budget_of(steps.texts[name])
        if bound is not None:
            rows[name]["budget_nbytes"] = bound
            line += f", bound {bound / MIB:.1f} MiB"
        print(line)


def test_bandwidth(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Compare steps with the longer of `keep` and moving the bytes in the faster bare loop."""
    if not steps.rates:
        pytest.skip("the folder does not support direct writes")
    _title(processes, "steps and the disk's bandwidth", processes.model.batch)
    rows: dict[str, Any] = {}
    record[f"bandwidth {processes.model.name}"] = rows
    best = {}
    for kind in ("write", "read"):
        rates = [row[1:] for name, row in steps.rates.items() if name.startswith(f"bare {kind}")]
        low, best[kind], high = max(map(quartiles, rates), key=lambda each: each[1])
        rows[kind] = {"bytes_per_second": best[kind], "quartiles": [low, high]}
        print(f"  bare {kind}: {best[kind] / 1e9:.2f} GB/s ({low / 1e9:.2f} to {high / 1e9:.2f})")
    compute = steps.median(KEEP)
    for name in steps.offgrad():
        if not steps.replies[name][-1].get("written_nbytes"):
            continue
        moving = steps.per_step(name, "written_nbytes") / best["write"]
        moving += steps.per_step(name, "read_nbytes") / best["read"]
        floor = max(compute, moving)
        rows[name] = {
            "median_seconds": steps.median(name),
            "compute_seconds": compute,
            "moving_seconds": moving,
            "ratio_to_longer": steps.median(name) / floor,
            "stall_seconds": steps.per_step(name, "stall_seconds"),
        }
        print(
            f"  {name:24} {steps.median(name):8.3f} s, {steps.median(name) / floor:.2f} of the "
            f"longer of computing, {compute:.3f} s, and moving, {moving:.3f} s; "
            f"waited {rows[name]['stall_seconds']:.3f} s"
        )


def test_curve(processes: Processes, record: dict[str, Any]) -> None:
    """Samples per second and peak memory: resident above the libraries' share, and of tensors."""
    _title(processes, "throughput and peak memory")
    rows: list[dict[str, Any]] = []
    record[f"curve {processes.model.name}"] = {"model": processes.model.title, "rows": rows}
    print("  batch  variant                   samples/s   quartiles          MiB   of tensors")
    for batch in processes.model.batches:
        texts = variants(saved_nbytes_of(processes, batch))
        replies: dict[str, list[Figures]] = {name: [] for name in texts}
        for _ in range(1 + ROUNDS):
            for name, text in texts.items():
                replies[name].append(processes.step(text, batch))
        for name, row in replies.items():
            low, rate, high = quartiles([batch / reply["seconds"] for reply in row[1:]])
            figures = {
                "batch": batch,
                "variant": name,
                "samples_per_second": rate,
                "quartiles_samples_per_second": [low, high],
                "peak_over_base_nbytes": row[-1]["peak_over_base_nbytes"],
            }
            line = (
                f"  {batch:5}  {name:24} {rate:10.3f}   {low:7.3f} to {high:7.3f} "
                f"{figures['peak_over_base_nbytes'] / MIB:8.0f}"
            )
            if "peak_nbytes" in row[-1]:
                figures["peak_nbytes"] = peak_of(row)
                line += f"     {figures['peak_nbytes'] / MIB:8.1f}"
            rows.append(figures)
            print(line)
        processes.stop()
    if path := os.environ.get("OFFGRAD_BENCH_PLOT"):
        save_curves(record, path, LEFT_OUT)


def test_largest_batch(processes: Processes, record: dict[str, Any]) -> None:
    """The largest batch that trains within the limit; beyond 10 to within a tenth.

    Budgets are fractions of the limit.
    """
    max_nbytes = parse_nbytes(LIMIT)
    _title(processes, f"the largest batch within {LIMIT} (budgets are fractions of it)")
    rows: dict[str, Any] = {}
    record[f"largest_batch {processes.model.name}"] = rows
    for name, text in variants(max_nbytes).items():
        if QUICK and name not in (KEEP, TORCH_KEEP):
            continue
        found = largest_batch(processes, text, max_nbytes)
        rows[name] = {"trains": found.trains, "fails": found.fails}
        print(f"  {name:24} {found.trains:5} ({found.fails} does not fit)")
