#!/bin/sh
# HF_ENDPOINT of huggingface_hub 2.4.0 holds for the first page of a list only.
# A mirror of the Hub that passes the Link header of huggingface.co through, as several public ones do, is
# left at the second page: the next request goes to the host in the header. On clusters where only the
# mirror can be reached, repositories with more than 1,000 files fail, and elsewhere requests reach a
# server that the variable was set to avoid. The address of the Xet token is rewritten to HF_ENDPOINT
# by the same version (utils/_xet.py), the next page isn't.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q huggingface_hub==2.4.0
env -u HF_TOKEN HF_HOME="$work/home" HF_HUB_DISABLE_TELEMETRY=1 "$work/venv/bin/python" - <<'END'
import http.server, json, sys, threading
import huggingface_hub
from huggingface_hub import HfApi

seen = []

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        seen.append(self.server.role)
        row = {"type": "file", "path": f"{len(seen)}.json", "size": 2, "oid": "0" * 40}
        self.send_response(200)
        if self.server.role == "mirror":
            path = self.path.partition("?")[0]
            self.send_header("Link", f'<http://127.0.0.1:{hub.server_port}{path}?cursor=2>; rel="next"')
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps([row]).encode())

    def log_message(self, *_):
        pass

def serve(role):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.role = role
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server

hub, mirror = serve("public Hub"), serve("mirror")
api = HfApi(endpoint=f"http://127.0.0.1:{mirror.server_port}", token=False)
files = [item.path for item in api.list_repo_tree("acme/shards", recursive=True)]
print("huggingface_hub", huggingface_hub.__version__)
print("endpoint: the mirror; files:", files)
print("pages were asked of:", seen)
sys.exit(0 if seen == ["mirror", "public Hub"] else 1)
END
