"""What is delivered, by its name: listings, blobs, chunks, parts and packs."""
