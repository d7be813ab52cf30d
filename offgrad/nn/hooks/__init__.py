"""Internal: how modules call their hooks. The public functions are `offgrad.nn`'s and Module's.

`registry` keeps the hooks, `call` runs a call with hooks, `call_stack` knows the running calls of
this thread, `full_backward` and `legacy_backward` call backward hooks.
"""
