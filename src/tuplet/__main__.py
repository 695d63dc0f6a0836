"""The command `tuplet`, also as `python -m tuplet`."""

from tuplet.signals import quit_on_signals


def main() -> None:
    """Run the command that the arguments name."""
    quit_on_signals()  # before the imports of the command line, which take a tenth of a second
    from tuplet.cli import main as run

    run()


if __name__ == "__main__":
    main()
