"""What does offloading cost a training step, what does it write, and what memory does it take?

    pytest benchmarks/bench_sessions.py -s

Each part is a test for each model, a GPT and a ResNet-18 for images of CIFAR's size:

- ``-k step_time``: a step under each policy against offgrad's `keep`, and under PyTorch's disk
  hooks and checkpoints against PyTorch's;
- ``-k bytes``: what is written, against what naive hooks are given;
- ``-k bound``: the memory that is taken;
- ``-k bandwidth``: a step against the longer of computing and moving its bytes at the disk's
  bandwidth, as a bare loop of direct writes and reads has it in the same rounds;
- ``-k curve``: throughput and peak memory at several batch sizes;
- ``-k largest``: the largest batch that trains within a limit of memory.

The first four look at one measurement, in which all variants take turns step by step, each in a
process of its own; in the last two they share one. Medians are printed with quartiles; no time is
asserted. Set by environment variables:

- OFFGRAD_BENCH_GPT="layers width heads context batch dropout", OFFGRAD_BENCH_RESNET="width batch"
- OFFGRAD_BENCH_ROUNDS: how many rounds, besides one that warms up
- OFFGRAD_BENCH_BATCHES_GPT, OFFGRAD_BENCH_BATCHES_RESNET: of the curve
- OFFGRAD_BENCH_LIMIT: of memory, for the largest batch
- OFFGRAD_BENCH_JSON: a file that gets all figures
- OFFGRAD_BENCH_SESSIONS=quick: tiny models, few rounds, and one process for each framework, to see
  that it works; its figures mean little.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.session_steps import (
    KEEP,
    LIMIT,
    MB,
    ROUNDS,
    TORCH_KEEP,
    Processes,
    Steps,
    budgets,
    has,
    measure,
    models,
    peak_of,
    policies_of,
    saved_nbytes_of,
)
from benchmarks.training_turns import Figures, quartiles
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


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, Any]]:
    """What goes into the file of figures."""
    figures: dict[str, Any] = {}
    yield figures
    if path := os.environ.get("OFFGRAD_BENCH_JSON"):
        Path(path).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _title(processes: Processes, text: str) -> None:
    model = processes.model
    sizes = " ".join(f"{size:g}" for size in model.sizes)
    print(f"\n{text}: {model.name} {sizes}, batch {model.batch}")


def test_step_time(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Each framework against its own `keep`."""
    _title(processes, "step time")
    rows = record.setdefault(f"step_time {processes.model.name}", {})
    for name in steps.replies:
        base = KEEP if name.startswith("offgrad") else TORCH_KEEP
        ratios = [
            own / its for own, its in zip(steps.seconds(name), steps.seconds(base), strict=True)
        ]
        low, median, high = quartiles(steps.seconds(name))
        rows[name] = {
            "median_seconds": median,
            "quartiles_seconds": [low, high],
            "ratio_to_keep": median / steps.median(base),
            "quartiles_ratio": [quartiles(ratios)[0], quartiles(ratios)[2]],
            "overhead_seconds": median - steps.median(base),
            "peak_rss_nbytes": steps.replies[name][-1]["peak_rss_nbytes"],
            "loss_of_last_step": steps.replies[name][-1]["loss"],
        }
        print(
            f"  {name:20} {median:8.3f} s ({low:.3f} to {high:.3f}), "
            f"{rows[name]['ratio_to_keep']:5.2f} of {base} "
            f"({quartiles(ratios)[0]:.2f} to {quartiles(ratios)[2]:.2f}), "
            f"{rows[name]['overhead_seconds']:+.3f} s"
        )
    if "torch disk" in rows:
        _compare_overheads(rows)


def _compare_overheads(rows: dict[str, Any]) -> None:
    torch_part = rows["torch disk"]["ratio_to_keep"] - 1
    for name in ("offgrad disk", "offgrad zarr"):
        part = rows[name]["ratio_to_keep"] - 1
        rows[name]["overhead_to_that_of_torch_disk"] = part / torch_part
        print(f"  overhead of {name}: {part:.1%} of its keep, of torch disk {torch_part:.1%}")


def test_bytes(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Bytes written against those that hooks are given on the same model."""
    batch = processes.model.batch
    naive = {}
    for framework in ("offgrad", "torch") if has("torch") else ("offgrad",):
        reply = processes.step(f"{framework} naive", batch, own=False)
        naive[framework] = reply["packed_nbytes"]
    processes.rest()
    _title(processes, "bytes a step")
    rows = record.setdefault(f"bytes {processes.model.name}", {"naive": naive})
    for framework, nbytes in naive.items():
        print(f"  hooks of {framework:7} are given {nbytes / MB:8.1f} MB")
    print(f"  keep saves {steps.saved_nbytes / MB:.1f} MB, each byte once and parameters apart")
    for name in steps.offgrad():
        if "written_nbytes" not in steps.replies[name][0]:
            continue
        written = steps.per_step(name, "written_nbytes")
        rows[name] = {
            "written_nbytes": written,
            "read_nbytes": steps.per_step(name, "read_nbytes"),
            "part_of_naive": {each: written / nbytes for each, nbytes in naive.items()},
        }
        parts = ", ".join(f"{written / nbytes:6.1%} of {each}'s" for each, nbytes in naive.items())
        print(f"  {name:20} writes {written / MB:8.1f} MB, {parts}")


def test_bound(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Tensor memory: the peak of a step, and what its forward pass takes and leaves for backward.

    In a forward pass there are besides what is held the results of the op that runs.
    """
    _title(processes, "memory of a step")
    rows = record.setdefault(f"bound {processes.model.name}", {})
    keep_peak = peak_of(steps.replies[KEEP])
    bounds = budgets(steps.saved_nbytes)
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
            f"  {name:20} peak {peak / MB:8.1f} MB, {peak / keep_peak:6.1%} of keep's; "
            f"over what was there before, at most {forward / MB:.1f} MB in forward, "
            f"{left / MB:.1f} MB after it"
        )
        policy = bounds.get(name.removeprefix("offgrad "))
        if policy is not None:
            rows[name]["budget_nbytes"] = bound = int(policy.removeprefix("budget:"))
            line += f", bound {bound / MB:.1f} MB"
        print(line)


def test_bandwidth(processes: Processes, steps: Steps, record: dict[str, Any]) -> None:
    """Steps against the longer of `keep` and moving the bytes by the better of the bare loops."""
    if not steps.rates:
        pytest.skip("the folder takes no direct writes")
    _title(processes, "steps and the disk's bandwidth")
    rows = record.setdefault(f"bandwidth {processes.model.name}", {})
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
            f"  {name:20} {steps.median(name):8.3f} s, {steps.median(name) / floor:.2f} of the "
            f"longer of computing, {compute:.3f} s, and moving, {moving:.3f} s; "
            f"waited {rows[name]['stall_seconds']:.3f} s"
        )


def test_curve(processes: Processes, record: dict[str, Any]) -> None:
    """Samples a second against peak tensor memory, under each policy at each batch size."""
    _title(processes, "throughput and peak memory")
    rows = record.setdefault(f"curve {processes.model.name}", [])
    print("  batch  policy         samples/s   quartiles        peak MB")
    for batch in processes.model.batches:
        policies = policies_of(saved_nbytes_of(processes, batch))
        replies: dict[str, list[Figures]] = {name: [] for name in policies}
        for _ in range(2 + ROUNDS // 2):
            for name, policy in policies.items():
                replies[name].append(processes.step(f"offgrad {policy}", batch, own=False))
        for name, row in replies.items():
            low, rate, high = quartiles([batch / reply["seconds"] for reply in row[1:]])
            figures: dict[str, Any] = {
                "batch": batch,
                "policy": name,
                "samples_per_second": rate,
                "quartiles_samples_per_second": [low, high],
                "peak_nbytes": peak_of(row[1:]),
            }
            rows.append(figures)
            print(
                f"  {batch:5}  {name:12} {rate:11.3f}   {low:7.3f} to {high:7.3f} "
                f"{figures['peak_nbytes'] / MB:10.1f}"
            )
    processes.rest()


def test_largest_batch(processes: Processes, record: dict[str, Any]) -> None:
    """The largest batch of which a step fits, with the optimizer's state; by bisection.

    Beyond 16 it is found to within a sixteenth. A budget is a quarter of the limit.
    """
    _title(processes, f"the largest batch within {LIMIT}")
    rows = record.setdefault(f"largest_batch {processes.model.name}", {})
    policies = policies_of(0)
    for name in budgets(0):
        del policies[name]
    policies["budget of a quarter"] = f"budget:{parse_nbytes(LIMIT) // 4}"
    for name, policy in policies.items():
        processes.step(f"offgrad {policy}", 1, own=False)  # makes the optimizer's state

        def trains(batch: int, policy: str = policy) -> bool:
            reply = processes.step(f"offgrad {policy}", batch, LIMIT, own=False)
            return "out_of_memory" not in reply

        rows[name] = largest = _largest(trains)
        print(f"  {name:20} {largest}")
    processes.rest()


def _largest(trains: Callable[[int], bool], most: int = 4096) -> int:
    """Return the largest number up to `most` for which ``trains(number)``; 0 if there is none."""
    low, high = 0, 1
    while high <= most and trains(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        if trains(middle):
            low = middle
        else:
            high = middle
    return low
