"""The search for the best setting of one strategy: what can be tried, and in which order."""
