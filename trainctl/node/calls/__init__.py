"""How callers are heard and answered, one call or many, and the program that does it."""
