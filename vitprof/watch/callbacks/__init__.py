"""Callbacks for frameworks that have a loop of their own: a file for each."""
