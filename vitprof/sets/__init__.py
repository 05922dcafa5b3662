"""A user's own data sets by name: how they are written, how their samples are read, a look at them,
their registry.
"""
