"""Files that arrays are written to directly."""
