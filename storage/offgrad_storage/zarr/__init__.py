"""Arrays in Zarr 3."""
