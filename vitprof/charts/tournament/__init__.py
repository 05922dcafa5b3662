"""Charts of a tournament, and of a search for one strategy's best setting. Each has its content in words."""
