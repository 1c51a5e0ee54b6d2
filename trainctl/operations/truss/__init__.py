"""Configs of the hosted service as manifests.

Begin with ``convert.convert``, a pure function; ``reader`` reads the config through the SDK.
"""
