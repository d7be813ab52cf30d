"""Which of PyTorch's public names offgrad has: `coverage`, and ``python -m offgrad.compat``."""

from offgrad._compat import Coverage, coverage

__all__ = ["Coverage", "coverage"]

if __name__ == "__main__":
    from offgrad._compat import main

    main()
