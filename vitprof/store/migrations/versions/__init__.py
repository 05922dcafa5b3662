"""One file for each version of the store, from the first. Released files are never changed."""
