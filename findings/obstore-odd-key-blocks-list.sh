#!/bin/sh
# obstore (the Rust object_store for Python): one object with an odd key, such as
# data//x or data/../x, makes the list of its whole prefix fail, though S3 allows
# such keys and other clients list them. It also drops the storage class, so that
# archived objects look like any others until they are read.
# Matters for training: datasets of several writers have such keys, and a list is
# the first request of every download. Filters can't help, as nothing is listed.
# Exits with 0 while the behaviour is as described.
set -eu
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check obstore==0.12.1
"$dir/venv/bin/python" - <<'PY'
import http.server, sys, threading
import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

KEYS = []
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        rows = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"1"</ETag><Size>1</Size><StorageClass>GLACIER</StorageClass></Contents>' for key in KEYS)
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body)))
        self.end_headers(); self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
store = S3Store("models", endpoint=f"http://127.0.0.1:{server.server_port}", region="us-east-1",
                skip_signature=True, client_options={"allow_http": True}, retry_config={"max_retries": 0})
print("obstore", obstore.__version__)
blocked = []
for odd in (None, "data//x", "data/../x", "data/./x"):
    KEYS[:] = ["data/config.json", *([odd] if odd else [])]
    try:
        listed = [row for page in store.list("data") for row in page]
    except BaseError as error:
        blocked.append(odd)
        print("keys", KEYS, "->", type(error).__name__, str(error).splitlines()[0][:120])
    else:
        print("keys", KEYS, "->", [row["path"] for row in listed], "members:", sorted(listed[0]))
        assert "storage_class" not in listed[0]
sys.exit(0 if blocked == ["data//x", "data/../x", "data/./x"] else 1)
PY
