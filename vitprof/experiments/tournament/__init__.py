"""Tournaments: settings run alternately until one can be recommended."""
