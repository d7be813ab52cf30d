"""What does offloading cost a training step, what does it write, and what memory does it take?

    pytest benchmarks/bench_sessions.py -s

Each part is a test for each model, a GPT and a ResNet-18 for images of CIFAR's size:

- ``-k step_time``: a step under each policy against offgrad's `keep`, and under PyTorch's disk
  hooks and checkpoints against PyTorch's;
- ``-k bytes``: what is written, against what naive hooks are given;
- ``-k bound``: the memory that is taken;
- ``-k bandwidth``: a step against the longer of computing and moving its bytes at the disk's
  bandwidth, as a bare loop of direct writes and reads has it in the same rounds;
- ``-k curve``: throughput and peak memory at several batch sizes, as a table, and as a picture;
- ``-k largest``: the largest batch that trains within a limit of memory.

The first four look at one measurement, in which all variants take turns step by step, each in a
process of its own. Medians are printed with quartiles; no time is asserted. The variants are listed
in `benchmarks._lib.session_variants`. Set by environment variables:

- OFFGRAD_BENCH_GPT="layers width heads context batch dropout", OFFGRAD_BENCH_RESNET="width batch"
- OFFGRAD_BENCH_ONLY="offgrad disk; torch disk": these variants, and the two that keep everything
- OFFGRAD_BENCH_ROUNDS: how many rounds, besides one that warms up
- OFFGRAD_BENCH_BATCHES_GPT, OFFGRAD_BENCH_BATCHES_RESNET: of the curve
- OFFGRAD_BENCH_PLOT: a PNG file for the curve; `benchmarks.curve` makes it of figures, too
- OFFGRAD_BENCH_LIMIT: of memory, for the largest batch
- OFFGRAD_BENCH_JSON: a file that gets all figures; those of other parts stay in it
- OFFGRAD_BENCH_SESSIONS=quick: tiny models, few rounds, and mostly one process for each framework,
  to see that it works; its figures mean little.
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
from benchmarks.curve import save_curves
from offgrad.memory import parse_nbytes

pytestmark = pytest.mark.timeout(3600)  # all rounds are in the set-up of one test


@pytest.fixture(scope="module", params=models(), ids=lambda model: model.name)
def processes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Processes]:
    """The workers of one model after the other."""
    made = Processes(request.param, tmp_path_factory.mktemp("spill"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def steps(processes: Processes) -> Steps:
    """What all parts but the last two look at."""
    found = measure(processes)
    processes.rest()
    return found


@pytest.fixture
def record() -> Iterator[dict[str, Any]]:
    """What is in the file of figures, for a part to put its own in place of older ones."""
    path = Path(os.environ.get("OFFGRAD_BENCH_JSON", os.devnull))
    figures: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    yield figures
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _title(processes: Processes, text: str, batch: int | None = None) -> None:
    at = "" if batch is None else f"; batch {batch}"
    print(f"\n{text}: {processes.model.title}{at}")


def test_step_time(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Each framework against its own `keep`."""
    _title(processes, "step time", processes.model.batch)
    rows: dict[str, Any] = {}
    record[f"step_time {processes.model.name}"] = rows
    for name in steps.replies:
        base = KEEP if name.startswith("offgrad") else TORCH_KEEP
        ratios = [
            own / its for own, its in zip(steps.seconds(name), steps.seconds(base), strict=True)
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
            f"  overhead of {name} over its keep {part:.1%}, of torch disk {torch_part:.1%}: "
            f"{part / torch_part:.3f} of it"
        )


def test_bytes(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Bytes written against those that hooks which store all they are given would write."""
    batch = processes.model.batch
    naive = {}
    for framework in ("offgrad", "torch") if has_torch() else ("offgrad",):
        naive[framework] = processes.step(f"{framework} naive", batch)["packed_nbytes"]
    processes.rest()
    _title(processes, "bytes a step", processes.model.batch)
    rows: dict[str, Any] = {"naive": naive}
    record[f"bytes {processes.model.name}"] = rows
    for framework, nbytes in naive.items():
        print(f"  hooks of {framework:7} are given {nbytes / MIB:8.1f} MiB")
    print(f"  keep saves {steps.saved_nbytes / MIB:.1f} MiB, each byte once and parameters apart")
    for name in steps.replies:
        written = steps.per_step(name, "written_nbytes")
        rows[name] = {
            "written_nbytes": written,
            "part_of_naive": {each: written / nbytes for each, nbytes in naive.items()},
        }
        parts = ", ".join(f"{written / nbytes:6.1%} of {each}'s" for each, nbytes in naive.items())
        print(f"  {name:24} writes {written / MIB:8.1f} MiB, {parts}")


def test_bound(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Tensor memory: the peak of a step, and what its forward pass takes and leaves for backward.

    In a forward pass there are besides what is held the results of the op that runs.
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
            f"over what was there before, at most {forward / MIB:.1f} MiB in forward, "
            f"{left / MIB:.1f} MiB after it"
        )
        bound = budget_of(steps.texts[name])
        if bound is not None:
            rows[name]["budget_nbytes"] = bound
            line += f", bound {bound / MIB:.1f} MiB"
        print(line)


def test_bandwidth(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Steps against the longer of `keep` and moving the bytes by the better of the bare loops."""
    if not steps.rates:
        pytest.skip("the folder takes no direct writes")
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
    """Samples a second against peak memory: resident over what libraries take, and of tensors."""
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
        processes.rest()
    if path := os.environ.get("OFFGRAD_BENCH_PLOT"):
        save_curves(record, path)


def test_largest_batch(processes: Processes, record: dict[str, Any]) -> None:
    """The largest batch of which a step fits; beyond 10 to within a tenth.

    Budgets are parts of the limit.
    """
    room = parse_nbytes(LIMIT)
    _title(processes, f"the largest batch within {LIMIT}, of which budgets are parts")
    rows: dict[str, Any] = {}
    record[f"largest_batch {processes.model.name}"] = rows
    for name, text in variants(room).items():
        if QUICK and name not in (KEEP, TORCH_KEEP):
            continue
        found = largest_batch(processes, text, room)
        rows[name] = {"trains": found.trains, "fails": found.fails}
        print(f"  {name:24} {found.trains:5} ({found.fails} does not fit)")
