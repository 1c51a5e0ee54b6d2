"""Conformance suites for plugins, as pytest classes to inherit.

``provider``, ``transport``, ``session`` (with ``session_program``), ``state_log``, ``weight_source``, ``machines`` and
``scheduler`` each test one interface; override the fixtures to supply an implementation.
"""
