"""What the bottleneck is, how much a fix would gain, and which fix to try."""
