"""Reusable page-aligned memory."""
