"""Internal: reusable page-aligned memory."""
