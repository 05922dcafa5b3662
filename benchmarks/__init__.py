"""What README quotes: ratios against references, measured side by side. Run as `python -m benchmarks.NAME`."""
