"""Scripts that run beside a submission in its sandbox."""
