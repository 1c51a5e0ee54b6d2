"""Call the node program through a transport.

- ``agent``: ``NodeAgent``, the entry point: installs the program and calls its methods
- ``session``: one remote process that serves many calls
- ``responses``: parse responses and map errors
- ``processes``: run local programs such as ssh, with timeouts
- ``archive``: pack the node program; the scripts that install and start it
- ``node_markers``: the keys that share a node, on its machine
- ``objects``: an object store in a host's directory, through these calls

See DESIGN.md in this directory.
"""
