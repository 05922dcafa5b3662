"""Storages: how samples are kept and read. `registry` has the file of each, `contract` what it must do.

A storage gives one of three things (its form): finished samples one by one through a torch Dataset, uint8 pixels in
whole batches, or encoded images. `loaders` makes batches of them. A `Place` says where the files are and how fast they
can be read (`vitprof.engine.locations`).
"""
