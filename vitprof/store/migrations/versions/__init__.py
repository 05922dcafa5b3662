"""One file for each version of the store, from the first on. What is released is not changed any more."""
