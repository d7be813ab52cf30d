"""`offgrad run`: a script of the user, trained under a policy without a change to it."""
