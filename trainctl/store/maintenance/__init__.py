"""Operations on a whole store.

``survey`` reports what a store holds of sources before a transfer, ``inventory`` lists its sources for people, ``verify``
hashes blobs and repairs, ``gc`` deletes unreferenced blobs. ``exclusive_access`` separates writers from deletions: begin
there to add an operation that deletes.
"""
