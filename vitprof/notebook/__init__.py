"""Runs of the store in Python, for a notebook or a script: `vitprof.runs()`, `vitprof.run(1)`. See docs/python.md.

`listing` reads runs, `one_run` is a run as an object, `frames` makes DataFrames, `figures` draws. The store is open
only while it is read, and nothing is imported before it is needed.
"""
