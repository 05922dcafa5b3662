"""The page Profile: the settings in the sidebar, the live run, and its results."""
