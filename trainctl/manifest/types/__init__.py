"""The sections of a manifest. What stands here is what checking, messages and the JSON Schema know."""
