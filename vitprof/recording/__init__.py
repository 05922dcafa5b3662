"""What a run is: the columns of its records, and what they mean."""
