"""The desired state: conversion of manifest documents to complete resources.

Begin with ``build.build``, which returns ``values.DesiredState``. It expands expressions and matrices (``expand``,
``expression``, ``shell``, ``matrix``), checks the tree against the types of ``manifest``, and then builds resources
(``resources``, ``jobs``, ``provider_settings``). ``names`` resolves references. ``cache`` stores the result for
unchanged manifests.
"""
