"""Internal: files of arrays."""
