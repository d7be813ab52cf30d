"""Does memory grow while a paged GPT trains for a thousand steps?

    python -m benchmarks.long_run [--steps 1000]

It prints resident memory, tensor memory, open files and the bytes of pages after every tenth of the
steps. All of the model is on disk, activations as well.

Where Linux has huge pages, its thread khugepaged fills the gaps between small buffers in memory for
which huge pages were asked, some minutes after the start. Resident memory then rises by steps of 2
MiB, to the size of the mappings at most; the bytes in huge pages show that it is this.
"""

import gc
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import psutil

import offgrad
from benchmarks._lib.options import checked
from offgrad import memory
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.optim import AdamW


@click.command()
@click.option("--steps", default=1000, show_default=True)
@click.option("--layers", default=2, show_default=True)
@click.option("--width", default=192, show_default=True)
@click.option("--window", type=checked(memory.parse_nbytes), default="2MiB", show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Where stores write.")
def main(steps: int, layers: int, width: int, window: int, directory: Path | None) -> None:
    """Train and print."""
    if steps < 10:
        raise click.UsageError("--steps is at least 10")
    offgrad.manual_seed(0)
    with TemporaryDirectory(dir=directory) as folder:
        with offgrad.offload_model("disk", window=window, directory=folder) as offload:
            model = GPT(GPTConfig(layers, width, width // 64, 64))
        optimizer = AdamW(model.parameters(), lr=1e-3)
        needed = 4 * sum(each.nbytes for each in model.parameters())
        click.echo(f"parameters, gradients and state: {memory.format_nbytes(needed)}")
        with offgrad.offload("disk", directory=folder) as session:
            pass
        for step in range(1, steps + 1):
            tokens = offgrad.randint(0, 256, (2, 65))
            with session:
                loss = model.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % (steps // 10) == 0:
                gc.collect()
                resident = memory.format_nbytes(psutil.Process().memory_info().rss)
                huge = memory.format_nbytes(_huge_nbytes())
                tensors = memory.format_nbytes(memory.allocated())
                pages = memory.format_nbytes(offload.resident_nbytes)
                files = len(os.listdir("/proc/self/fd"))
                click.echo(
                    f"step {step}: loss {loss.item():.4f}, resident {resident} ({huge} of it in "
                    f"huge pages), tensors {tensors}, pages {pages}, {files} open files"
                )


def _huge_nbytes() -> int:
    """Return the bytes of memory in huge pages; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    found = [int(each.split()[1]) for each in lines if each.startswith("AnonHugePages:")]
    return 1024 * sum(found)


if __name__ == "__main__":
    main()
