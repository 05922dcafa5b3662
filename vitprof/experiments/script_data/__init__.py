"""A script's own Dataset: what it is, and what its samples are worth in other forms.

Both need the script: it is run up to its first step of training.
"""
