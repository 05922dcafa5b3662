"""Loaders: they make batches, each in its own threads or processes. `registry` has the file of each."""
