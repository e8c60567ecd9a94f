"""What schemathesis cannot know from an OpenAPI document: two types of bodies, and which parameters exclude each other.

The types are NDJSON and CBOR sequences. The document describes both as an array of their items.
"""

import io
import json

import cbor2
import schemathesis


@schemathesis.serializer("application/x-ndjson")
def write_ndjson(context, value):
    items = value if isinstance(value, list) else [value]
    return {"data": "".join(json.dumps(item) + "\n" for item in items).encode()}


@schemathesis.deserializer("application/x-ndjson")
def read_ndjson(context, response):
    return [json.loads(line) for line in response.content.splitlines()]


@schemathesis.serializer("application/cbor-seq")
def write_cbor(context, value):
    items = value if isinstance(value, list) else [value]
    return {"data": b"".join(cbor2.dumps(item) for item in items)}


@schemathesis.deserializer("application/cbor-seq")
def read_cbor(context, response):
    decoder = cbor2.CBORDecoder(io.BytesIO(response.content))
    items = []
    while decoder.fp.tell() < len(response.content):
        items.append(decoder.decode())
    return items


def is_contradictory(case):
    """Whether klad rejects a combination of valid parameters. OpenAPI 3.1 cannot express this."""
    query = case.query or {}
    headers = {name.lower(): value for name, value in (case.headers or {}).items()}
    if case.method in ("PUT", "POST", "DELETE") and "if-match" in headers and "if-none-match" in headers:
        return True
    if "ttl" in query and "klad-ttl" in headers:
        return True
    if case.method == "POST" and "op" in query:
        wanted, unwanted = ("by", None) if query["op"] == "add" else ("ttl", "by")
        return wanted not in query or unwanted in query or (wanted == "by" and query.get("ttl") == "none")
    return False


@schemathesis.hook
def filter_case(context, case):
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    return not (is_valid and is_contradictory(case))
