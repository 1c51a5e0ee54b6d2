"""Review of plans: comments, policies and signatures."""
