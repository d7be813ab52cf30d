"""Reductions and scans over dimensions."""
