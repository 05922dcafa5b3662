"""Questions that take more than one job: headroom, predictions, tournaments, the self-test."""
