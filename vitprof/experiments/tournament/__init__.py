"""Tournaments: settings run against each other, in turns, until one can be recommended."""
