"""The data sets: which there are by name (`catalog`), made or downloaded here and checked (`on_disk`), and a
user's own (`own`).

How samples are stored is `vitprof.forms`, how a job reads them `vitprof.engine.storage`.
"""
