"""`python -m tuplet`: the command without its installation."""

from tuplet.cli import main

if __name__ == "__main__":
    main()
