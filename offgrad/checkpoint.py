"""Checkpoints of a whole run: model, optimizer, scheduler, random states, place in the data.

A run that was killed continues from its last checkpoint with the same losses, bit for bit:

    start = 0
    if os.path.exists(folder):
        start = checkpoint.load(folder, model=model, optimizer=optimizer)["step"]
    for step in range(start, 1000):
        ...
        checkpoint.save(folder, step=step + 1, keep_last=2, model=model, optimizer=optimizer)

Files are those of `offgrad.save`. Paged tensors are written and read one by one, so a checkpoint
may be larger than memory.
"""

from offgrad._checkpoint.runs import ResumableLoader, Save, latest, load, save

__all__ = ["ResumableLoader", "Save", "latest", "load", "save"]
