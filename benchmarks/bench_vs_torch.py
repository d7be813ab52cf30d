"""How fast is offgrad, compared with PyTorch on the same CPU?

    python -m benchmarks.bench_vs_torch [--rounds 15] [--only "GPT 6x512"] [--threads 1,2]
                                        [--json FILE]

Measured are training steps of GPTs, an MLP and small models; the cost of small operations, of
module calls and of a long chain of nodes; and peak memory. torch eager runs its fused AdamW;
torch.compile compiles the loss. Each contender runs in its own process. First, gradients are
compared with torch's, from the same weights and data, and the command fails if they differ by more
than rounding. Then the processes take turns, in random order, so that other load slows all of them
alike. Ratios are those of a round. Peak memory is measured in fresh processes, each alone, beyond
memory with the libraries loaded.

Targets stand beside the figures. The command asserts no time. With ``--policy disk`` training steps
also run under policies, and torch under the disk hooks of its documentation.
"""

from benchmarks._lib.versus_command import command
from benchmarks._lib.versus_rows import ROWS

main = command(ROWS)

if __name__ == "__main__":
    main()
