"""Several ranks that train together: which samples each has, when they end, and how their steps are
noted.
"""
