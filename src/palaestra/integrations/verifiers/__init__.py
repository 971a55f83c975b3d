"""verifiers: its environments as turn environments, and ours as environments of verifiers."""
