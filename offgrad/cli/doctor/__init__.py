"""`offgrad doctor`: what this machine offers, what is wrong, and the remedy."""
