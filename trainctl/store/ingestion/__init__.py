"""Copy a source into a store: fetch what is missing of it, verify, then write its listing.

Begin with ``ingest``. ``coverage`` finds what the store has already, ``upstream`` hashes bytes as they arrive and
``file_transfer`` fetches a file by chunks; ``chunk_writer`` writes large files and ``pack_writer`` small ones. A
transfer that was interrupted goes on where it stopped.
"""
