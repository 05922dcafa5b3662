"""What leaves the house: files of runs, an HTML report, a trace, TensorBoard's files, bundles, a strategy as code.

Modules that take long to import are imported where they are used: `vitprof.export.report`, `.trace`, `.tensorboard`.
"""
