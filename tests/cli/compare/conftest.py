"""Sizes of a comparison that takes seconds."""

TINY = (
    *("--layers", "2", "--width", "16", "--heads", "2", "--context", "32", "--batch", "2"),
    *("--steps", "3", "--memory-limit", "none"),
)
