"""Tournaments: settings run against each other, in turns, until one can be recommended.

A trial is one setting: a strategy, a batch size, a number of workers and a state of the page cache. It is run several
times, in rounds (A B C, A B C), so that a slow change of the machine affects all trials alike. What has been done is
known from the store's runs alone (`vitprof.store.stored_run`).
"""
