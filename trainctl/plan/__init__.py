"""Planning: a pure function from values to a plan. See DESIGN.md beside this file."""
