"""Values of declared secrets, and who receives them.

Begin with ``resolver.SecretResolver``. ``sources`` reads and writes values, ``destinations`` lists the hosts
that receive them, ``bucket_credentials`` and ``registries`` turn them into logins.
"""
