"""One module a command; each has a function ``command`` that returns an exit code."""
