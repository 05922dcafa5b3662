"""The Tournament page."""
