"""Work on a store as a whole: look at it, verify it, and delete what nothing needs.

``survey`` says what a store has of sources before a transfer, ``inventory`` lists its contents for people, ``verify``
hashes them and repairs, and ``gc`` deletes what no reference needs. ``exclusive_access`` keeps writers and whoever
deletes apart: begin there when you add something that deletes.
"""
