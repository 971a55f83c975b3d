"""What runs beside a submission in its sandbox."""
