"""`python -m dpaudit`: the command line, where no `dpaudit` is on the PATH."""

from dpaudit.audit.cli import main

if __name__ == "__main__":
    main()
