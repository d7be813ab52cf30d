"""`offgrad bench-storage`: what a drive gives, bare and through each store and codec."""
