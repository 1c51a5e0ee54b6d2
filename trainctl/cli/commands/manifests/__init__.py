"""Commands about manifests."""
