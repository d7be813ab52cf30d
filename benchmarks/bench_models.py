"""How fast do models of convolutions, recurrence and attention train, compared with PyTorch?

    python -m benchmarks.bench_models [--rounds 15] [--only LSTM] [--threads 2] [--policy disk]
                                      [--no-compile] [--json FILE]

A step is the forward pass, backward and AdamW, from the same weights on the same data; see
`benchmarks.bench_vs_torch`, whose options and rules these are. ``--policy keep --policy disk``
compares policies with each other in the same turns.
"""

from benchmarks._lib.versus_command import command
from benchmarks._lib.versus_rows import MODEL_ROWS

main = command(MODEL_ROWS)

if __name__ == "__main__":
    main()
