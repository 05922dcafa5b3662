"""vitprof: is my GPU starved by data loading, by which part, and what would a fix gain?"""

__version__ = "0.1.0"
