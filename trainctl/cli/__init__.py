"""The command line: flags to arguments, one file a command. See DESIGN.md beside this file."""
