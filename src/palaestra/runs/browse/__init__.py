"""Pages of the records of a run: examples, problems, calls and steps, filtered and searched by SQL.

A store may be larger than the memory, so a page reads only its own rows.
"""
