"""What the runner of an evaluator, what stands in for the submission there, and the host agree on."""

SERVED_BY = "PALAESTRA_LINE"
"""Variable of the environment: where the runner's socket is."""
ASK, OPEN, UNSENDABLE, ENDED = b"?", b"@", b"!", b"."
"""How lines of the evaluator's side begin: a call, the opening of the module, what cannot be sent, and the end."""
LONGEST_REQUEST = 128 << 20
"""Bytes of the largest request."""
