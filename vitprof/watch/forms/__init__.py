"""The forms in which the samples of a Dataset can be stored: a module each, with `write` and `Samples`. `convert` gives
such a module, with what it needs of `stored`, as a script without vitprof.
"""
