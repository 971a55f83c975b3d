"""The skill tree: its records, its policies, and the limits that are enforced on them."""
