"""The `dpaudit` command, also `python -m dpaudit`: one line where Ctrl-C comes before the command line has loaded."""

import os
import sys


def main() -> None:
    """Entry point."""
    try:
        from dpaudit.audit import cli
    except KeyboardInterrupt:
        print("dpaudit: interrupted before it began", file=sys.stderr, flush=True)
        os._exit(4)  # `audit.exit_status.GAVE_UP`, which may not be loaded; `audit.cli` says what sys.exit may end by
    cli.main()


if __name__ == "__main__":
    main()
