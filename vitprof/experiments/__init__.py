"""Questions that take more than one job: headroom, tournaments, the self-test."""
