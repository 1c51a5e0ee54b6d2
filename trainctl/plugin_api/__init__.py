"""The plugin interface, the only stable interface of trainctl.

``provider`` has the interfaces of providers and of transports to their nodes, ``state`` that of state backends,
``sources`` that of weight sources; ``machines`` and ``scheduler`` are optional interfaces of providers. Plugins are
registered by entry points in the groups of ``discovery``.
"""
