"""Arrays in RAM first, then in slower stores."""
