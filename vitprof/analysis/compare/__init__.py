"""Runs beside each other: what differs, and whether they may be compared at all."""
