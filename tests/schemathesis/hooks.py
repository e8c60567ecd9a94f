"""What schemathesis cannot know from an OpenAPI document: two types of bodies, and which parameters exclude each other.

The types are NDJSON and CBOR sequences. The document describes both as an array of their items.
"""

import base64
import io
import json
import re

import cbor2
import schemathesis


@schemathesis.serializer("application/x-ndjson")
def write_ndjson(context, value):
    items = value if isinstance(value, list) else [value]
    return "".join(json.dumps(item) + "\n" for item in items).encode()


@schemathesis.deserializer("application/x-ndjson")
def read_ndjson(context, response):
    return [json.loads(line) for line in response.content.splitlines()]


def with_bytes(item):
    """The item with byte strings for the members that JSON has in base64."""
    if not isinstance(item, dict):
        return item
    converted = dict(item)
    for name in ("key", "value"):
        try:
            encoded = converted[name + "64"]
            converted[name] = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
            del converted[name + "64"]
        except (KeyError, TypeError, ValueError):
            pass
    if isinstance(converted.get("meta64"), dict):
        encoded = converted.pop("meta64")
        converted["meta"] = {**converted.get("meta", {}), **{name: base64.b64decode(encoded[name]) for name in encoded}}
    return converted


@schemathesis.serializer("application/cbor-seq")
def write_cbor(context, value):
    items = value if isinstance(value, list) else [value]
    return b"".join(cbor2.dumps(with_bytes(item)) for item in items)


@schemathesis.deserializer("application/cbor-seq")
def read_cbor(context, response):
    content = io.BytesIO(response.content)
    decoder = cbor2.CBORDecoder(content, read_size=1)
    items = []
    while content.tell() < len(response.content):
        items.append(decoder.decode())
    return items


YES = ("true", "1", "")
BOUNDS = {"prefix", "prefix64", "start", "start64", "end", "end64"}
OF_RANGES = BOUNDS | {"limit", "cursor", "reverse", "keys_only", "count", "delimiter", "all"}


def is_contradictory(case):
    """Whether klad rejects a combination of valid parameters. OpenAPI 3.1 cannot express this."""
    query = case.query or {}
    headers = {name.lower(): value for name, value in (case.headers or {}).items()}
    writes = case.method in ("PUT", "POST", "DELETE")
    if writes and "if-match" in headers and "if-none-match" in headers:
        return True
    if "ttl" in query and "klad-ttl" in headers:
        return True
    if any({name, name + "64"} <= query.keys() for name in ("prefix", "start", "end")):
        return True
    if "key64" in query and OF_RANGES & query.keys():
        return True
    # Only an answer gives a cursor.
    if "cursor" in query:
        return True
    if query.get("count") in YES and "delimiter" in query:
        return True
    streams = headers.get("accept", "").startswith("application/") and headers["accept"] != "application/json"
    if not streams and query.get("count") not in YES and int(query.get("limit", 1)) > 10_000:
        return True
    if case.operation.label == "DELETE /v1/kv" and "key64" not in query:
        return "if-match" in headers or (query.get("all") in YES) == bool(BOUNDS & query.keys())
    if case.method == "POST" and "op" in query:
        wanted, unwanted = ("by", None) if query["op"] == "add" else ("ttl", "by")
        return wanted not in query or unwanted in query or (wanted == "by" and query.get("ttl") == "none")
    if case.operation.label == "POST /v1/batch":
        return any(set(item.get("meta", ())) & set(item.get("meta64", ())) for item in case.body)
    return False


@schemathesis.hook
def map_case(context, case):
    """No deadline passes on a busy machine."""
    for name in case.headers or {}:
        if name.lower() == "klad-timeout" and re.fullmatch("[0-9]+(ms|s|m)", case.headers[name]):
            case.headers[name] = "9m"
    return case


@schemathesis.hook
def filter_case(context, case):
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    return not (is_valid and is_contradictory(case))
