"""Watches somebody else's training from inside its process: the same measurements as of a job of our own.

Nothing in the script changes. `startup/sitecustomize.py` comes first on PYTHONPATH, so Python runs it in every process
below the command; it waits for PyTorch's DataLoader (`on_import`), times what that does (`loader_hooks`, `timed`,
`composes`), finds the one that trains (`loop`), makes steps of it (`steps`, `transforms`) and sends them to whoever
started the command (`session`). An error of ours ends the watching, never the training (`guard`).
In a trial of a tournament `overrides` changes the arguments of its loader. In the watched
process no module of ours imports Streamlit, SQLAlchemy, pandas or Plotly.
"""
