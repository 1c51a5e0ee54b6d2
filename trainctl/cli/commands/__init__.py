"""The commands, a module per group; ``NAME_command`` returns an exit code."""
