"""`offgrad profile`: a script of the user, recorded without a change to it."""
