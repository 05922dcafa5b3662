"""The page Try fixes, where tournaments run."""
