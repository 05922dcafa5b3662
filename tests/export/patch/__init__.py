"""Tests of `vitprof.export.patch`."""
