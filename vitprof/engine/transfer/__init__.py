"""Transfers: how a batch reaches the device. `registry` has the file of each."""
