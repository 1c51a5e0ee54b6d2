"""Mirror a source: fetch missing files, verify them, write the listing.

Begin with ``ingest``. ``coverage`` finds files that the store already holds, ``file_transfer`` fetches a file by chunks,
``upstream`` hashes the bytes; ``chunk_writer`` stores large files and ``pack_writer`` small ones. Interrupted transfers
resume.
"""
