"""`offgrad compare`: one model under several policies, side by side."""
