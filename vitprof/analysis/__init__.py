"""Arrays in, dataclasses out: no torch, no drawing, no files."""
