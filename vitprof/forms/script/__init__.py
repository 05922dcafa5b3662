"""What is done with a Dataset in the script's own Python: it is described, and stored in the forms.

These modules import the standard library, numpy, torch, the libraries of forms and other modules of
`vitprof.forms`: no more is certain to be there. What only a watched process knows is handed in.
"""
