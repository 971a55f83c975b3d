"""Where independent items run: in this process, in several, or on a Ray cluster."""
