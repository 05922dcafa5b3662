"""Reads, decodes and collates batches, moves them to the device and trains on them, timed, in the job's process."""
