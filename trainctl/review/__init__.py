"""Pull requests on GitHub and merge requests on GitLab: comments, issues, checks, approvals."""

from __future__ import annotations
