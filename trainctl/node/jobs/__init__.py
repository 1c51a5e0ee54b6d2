"""What a job finds around it, on the host or in a container."""
