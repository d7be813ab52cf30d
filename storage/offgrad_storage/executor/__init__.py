"""Internal: write-behind and prefetch on I/O threads."""
