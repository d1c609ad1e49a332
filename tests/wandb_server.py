"""A stand-in for the W&B server, as far as uploads and saved views need one; the client is the real one."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789" * 4


class StandIn:
    """What arrived: `history` rows by run, in the order of the lines, and saved `views` by name. `fault` is the
    status that uploads are refused with; rows of runs in `unanswered` are not answered as long as they are there.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.ended: dict[str, int] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.fault = 0
        self.unanswered: set[str] = set()

    def steps(self, run: str) -> list[int]:
        return [row["step"] for row in self.history.get(run, [])]

    def answer(self, query: str, said: dict[str, Any]) -> dict[str, Any]:
        for operation in ("RunResumeStatus", "upsertBucket", "createRunFiles", "upsertView", "allViews", "viewer"):
            if operation in query:
                return getattr(self, f"_{operation}")(said)
        return {"serverInfo": {"features": []}} if "serverInfo" in query else {}

    def _viewer(self, said: dict[str, Any]) -> dict[str, Any]:
        nobody = {"edges": []}
        return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": nobody}}

    def _project(self) -> dict[str, Any]:
        return {"id": "p", "name": "modernllm", "entity": {"id": "e", "name": "me"}}

    def _RunResumeStatus(self, said: dict[str, Any]) -> dict[str, Any]:
        rows = self.history.get(said["name"])
        bucket = rows is not None and {
            "id": "b", "name": said["name"], "displayName": "", "summaryMetrics": "{}", "config": "{}", "tags": [],
            "logLineCount": 0, "eventsLineCount": 0, "historyLineCount": len(rows), "eventsTail": "[]",
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]), "wandbConfig": '{"t": 1}',
        }  # fmt: skip
        return {"model": {**self._project(), "bucket": bucket or None}}

    def _upsertBucket(self, said: dict[str, Any]) -> dict[str, Any]:
        known = self.runs.setdefault(said["name"], {})
        known |= {key: value for key, value in said.items() if value is not None}
        self.history.setdefault(said["name"], [])
        bucket = {"id": "b", "name": said["name"], "displayName": said["name"], "config": "{}", "sweepName": ""}
        return {"upsertBucket": {"bucket": {**bucket, "project": self._project()}, "inserted": True}}

    def _createRunFiles(self, said: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/storage/{name}"} for name in said["files"]]
        return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}

    def _upsertView(self, said: dict[str, Any]) -> dict[str, Any]:
        self.views[said["name"]] = said
        return {"upsertView": {"view": {"id": f"id of {said['name']}", "name": said["name"]}, "inserted": True}}

    def _allViews(self, said: dict[str, Any]) -> dict[str, Any]:
        found = [self.views[said["viewName"]]] if said["viewName"] in self.views else []
        nodes = [{"node": {**view, "id": f"id of {view['name']}"}} for view in found]
        return {"project": {"allViews": {"edges": nodes}}}

    def stream(self, run: str, chunk: dict[str, Any]) -> None:
        """Lines replace those that stand at their offset."""
        if new := chunk.get("files", {}).get("wandb-history.jsonl"):
            lines, start = self.history.setdefault(run, []), new["offset"]
            lines[start : start + len(new["content"])] = map(json.loads, new["content"])
        if chunk.get("complete"):
            self.ended[run] = chunk["exitcode"]


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            if self.path.endswith("/file_stream"):
                run = self.path.split("/")[-2]
                while run in stand_in.unanswered:
                    time.sleep(0.05)
                stand_in.stream(run, json.loads(body))
                self._send({"exitcode": None, "limits": {}})
            elif self.path.endswith("/graphql"):
                asked = json.loads(body)
                if stand_in.fault:
                    self._send({"errors": [{"message": "permission denied"}]}, stand_in.fault)
                else:
                    self._send({"data": stand_in.answer(asked["query"], asked.get("variables") or {})})
            else:
                self._send({})

        do_PUT = do_GET = do_POST

        def _send(self, content: dict[str, Any], code: int = 200) -> None:
            text = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


@contextmanager
def serving() -> Iterator[StandIn]:
    with _Quiet(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        stand_in = StandIn(f"http://127.0.0.1:{server.server_port}")
        server.RequestHandlerClass = _handler(stand_in)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield stand_in
        stand_in.unanswered.clear()
        server.shutdown()
        thread.join()
