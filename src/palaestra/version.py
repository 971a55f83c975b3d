"""The version, in its own module so that it can be read without other imports."""

__version__ = "0.1.0"
