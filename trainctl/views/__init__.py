"""What is shown: values and events as text and JSON. See DESIGN.md beside this file."""
