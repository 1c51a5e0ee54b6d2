"""Pages for a browser. `server` sends them, `pages` renders them, `queries` paces the requests to hosts."""
