"""What a run uses, sampled while it goes on."""
