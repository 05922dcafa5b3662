"""Questions that take more than one job: headroom, predictions, tuning, tournaments, the self-test."""
