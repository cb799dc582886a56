"""`python -m specframe`."""

from __future__ import annotations

from specframe.cli import main

if __name__ == "__main__":
    main()
