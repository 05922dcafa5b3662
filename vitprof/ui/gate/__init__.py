"""Who gets in: under which names, from which pages, with which token or login."""
