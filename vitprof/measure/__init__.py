"""The measuring core of built-in jobs and watched scripts: clocks, devices with their marks, step
rows, the wire.
"""
