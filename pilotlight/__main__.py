"""`python -m pilotlight` and `pilotlight`: the command line."""

import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is imported ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pilotlight import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
