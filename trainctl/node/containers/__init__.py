"""Container engines, images, and what a container leaves behind."""
