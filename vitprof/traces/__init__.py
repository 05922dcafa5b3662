"""A trace of torch.profiler (Kineto's JSON, which chrome://tracing opens) as the steps of a training.

File -> events (`trace_file`), events -> spans of threads and work of the device (`events`), spans ->
the loop that trains (`loop`), both -> columns of step records (`columns`), all of it -> what a run
needs (`reading`). Nothing here imports torch or writes anything.
"""
