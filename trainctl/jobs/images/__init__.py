"""Container images in registries."""
