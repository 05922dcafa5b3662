"""What happens to a batch: read, decoded, collated, moved to the device, trained on, timed. In the job's process."""
