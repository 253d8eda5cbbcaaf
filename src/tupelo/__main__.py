"""`python -m tupelo` is the command `tupelo`."""

from tupelo.apps.cli import main

if __name__ == "__main__":
    main()
