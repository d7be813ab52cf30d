"""Tests of paged parameters, gradients and optimizer state."""
