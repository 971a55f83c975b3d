"""Adapters from Palaestra to other libraries."""
