"""The desired state: conversion of manifest documents to complete resources.

Begin with ``build.build``, which returns ``values.DesiredState``. It expands expressions and matrices (``variables``,
``expand``, ``expression``, ``matrix``), checks the tree against the types of ``model.specs``, and then builds
resources (``resources``, ``jobs``). ``names`` resolves references. ``cache`` stores the result for unchanged manifests.
"""
