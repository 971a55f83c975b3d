"""`palaestra`, and `python -m palaestra`."""

from palaestra.interrupts import end_on_interrupt, exit_on_interrupt, raise_on_interrupt


def main() -> None:
    """Run the command."""
    exit_on_interrupt()
    from palaestra.cli.main import main as run

    raise_on_interrupt()
    try:
        run()
    finally:
        end_on_interrupt()


if __name__ == "__main__":
    main()
