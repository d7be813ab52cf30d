"""Profile the memory of a training step, with and without offloading."""

import sys
from pathlib import Path

import offgrad
from offgrad import nn
from offgrad.optim import AdamW
from offgrad.profiler import profile_memory


def main(folder: Path) -> None:
    """For each of two policies print a table and draw a plot into `folder`."""
    layers = [each for _ in range(8) for each in (nn.Linear(512, 512), nn.GELU())]
    model = nn.Sequential(*layers)
    optimizer = AdamW(model.parameters())
    x = offgrad.randn(4096, 512)
    for policy in ("keep", "disk"):
        with profile_memory() as profile:
            with offgrad.offload(policy):
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        path = folder / f"memory-{policy}.png"
        profile.plot(path)
        print(f"{policy}:\n{profile}\n{path}\n")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    if not folder.is_dir():
        print(f"{sys.argv[0]}: {folder} is no folder", file=sys.stderr)
        sys.exit(2)
    main(folder)
