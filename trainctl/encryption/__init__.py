"""Encryption of states and plan files with AES-256-GCM; see DESIGN.md.

``keys`` seals single values, ``sealed_log`` wraps a state log, ``position_memory`` detects old copies of it.
"""
