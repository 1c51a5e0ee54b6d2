"""What create, read, update and delete mean for each kind of resource, one module a kind."""
