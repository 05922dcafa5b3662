"""Runs side by side: what differs, and whether they may be compared at all."""
