"""What plugins implement and may import: the only promise to strangers. See DESIGN.md beside this file."""
