"""What a job takes along: its code, its environment, its secrets. See DESIGN.md beside this file."""
