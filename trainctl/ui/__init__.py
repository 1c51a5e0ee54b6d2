"""Pages for a browser. `server` sends them, `pages` and `runs` render them, and pace the requests to hosts.

- Every answer comes from an operation of a command; the workspace is read-only, so that no request changes the state.
- Every text passes `PageRenderer.masked`, then Jinja's escaping; JSON of charts by `tojson`, which masks, too.
- Pages of runs and nodes wait a moment for hosts, then show what the state has until the answer is known.
"""
