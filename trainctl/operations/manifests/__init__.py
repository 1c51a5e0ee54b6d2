"""Manifests: write new ones, format them, import configs of truss, fetch files that they extend."""
