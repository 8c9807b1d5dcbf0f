"""`python -m pilotlight`: the command line."""

import sys

from pilotlight.cli import main

if __name__ == "__main__":
    sys.exit(main())
