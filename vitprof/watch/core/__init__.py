"""What a watched process did, from its events, with hindsight: which loader trains, where each step
begins and ends.

Everything here is a function of the events: no clock, no thread, no lock, no file, no PyTorch. An
event log in a file gives the same steps as it gave while the script ran, in milliseconds.

`log` has the events; `timeline` puts those of one thread in the words of a loop: batches that were
fetched, work that was done. `training` finds the thread that trains and the loaders that feed it;
`loop` divides its timeline into steps; `columns` makes the figures of a recording of them.
"""
