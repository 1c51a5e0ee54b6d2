"""Use cases: each takes what it needs, tells events, returns values and prints nothing. See DESIGN.md beside this file."""
