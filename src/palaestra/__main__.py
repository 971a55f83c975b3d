"""`python -m palaestra` runs the command `palaestra`."""

from palaestra.cli.main import main

if __name__ == "__main__":
    main()
