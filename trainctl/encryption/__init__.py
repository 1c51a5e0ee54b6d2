"""Encryption of states and plan files with AES-256-GCM; see DESIGN.md.

``keys`` seals single values, ``sealed_log`` wraps a state log and detects old copies of it.
"""
