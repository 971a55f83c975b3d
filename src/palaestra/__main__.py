"""`palaestra`, and `python -m palaestra`."""

import sys


def main() -> None:
    """Run the command. Ctrl-C while it is imported is one line, as afterwards."""
    try:
        from palaestra.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
