"""Measurements that the README quotes: ratios against references, side by side. Run as `python -m benchmarks.NAME`."""
