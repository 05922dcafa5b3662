"""The self-test on a real GPU: what the figures of a run on it rest on, and that every strategy runs."""
