"""Internal: arrays in Zarr 3."""
