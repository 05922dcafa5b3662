"""Where the time of a run went: spans and gaps, steady state, exposure, the run's summary."""
