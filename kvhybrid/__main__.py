"""``python -m kvhybrid``: the same as the ``kvhybrid`` command."""

from __future__ import annotations

import sys

from kvhybrid.cli import main

if __name__ == "__main__":
    sys.exit(main())
