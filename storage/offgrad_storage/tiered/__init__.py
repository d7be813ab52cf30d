"""Internal: arrays in RAM first, then in slower stores."""
