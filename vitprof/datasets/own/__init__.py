"""A user's own data sets by name: how they are written (`specs`), how their samples are listed (`readers`),
a look at them (`look`), where they are kept (`registry`), and their folder for a job (`layout`).
"""
