"""Making a plan so: intent, effect, outcome, in the order of the graph. See DESIGN.md beside this file."""
