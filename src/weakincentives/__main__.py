"""`python -m weakincentives` is `wink`."""

from weakincentives.cli.main import main

if __name__ == "__main__":
    main()
