"""Tournaments on many machines: whole rounds as tasks of Ray or Slurm, each on a node of its own."""
