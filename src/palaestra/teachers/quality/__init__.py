"""Quality checks, which filter the examples of a lesson."""
