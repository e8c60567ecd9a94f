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


def decoded(encoded):
    """The bytes of a member in base64 or base64url; None if it is neither, which klad must find out."""
    if not isinstance(encoded, str) or not re.fullmatch("[A-Za-z0-9_-]*=*|[A-Za-z0-9+/]*=*", encoded):
        return None
    unpadded = encoded.rstrip("=").replace("+", "-").replace("/", "_")
    if len(unpadded) % 4 == 1:
        return None
    value = base64.urlsafe_b64decode(unpadded + "=" * (-len(unpadded) % 4))
    return value if base64.urlsafe_b64encode(value).decode().rstrip("=") == unpadded else None


def with_bytes(item):
    """The item with byte strings for the members that JSON has in base64."""
    if not isinstance(item, dict):
        return item
    converted = dict(item)
    for name in ("key", "value"):
        value = decoded(converted.get(name + "64"))
        if value is not None:
            del converted[name + "64"]
            converted[name] = value
    encoded, plain = converted.get("meta64"), converted.get("meta", {})
    if isinstance(encoded, dict) and isinstance(plain, dict) and None not in map(decoded, encoded.values()):
        del converted["meta64"]
        converted["meta"] = {**plain, **{name: decoded(encoded[name]) for name in encoded}}
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
    # OpenAPI counts characters, and klad bytes.
    for name, bytes_max in {"prefix": 4097, "start": 4097, "end": 4097, "delimiter": 16}.items():
        if len(query.get(name, "").encode()) > bytes_max:
            return True
    if len(str((case.path_parameters or {}).get("key", "")).encode()) > 4096:
        return True
    replicas = {"ack", "from", "replicas"} & query.keys()
    if replicas and ("klad-consistency" in headers or ("replicas" in query and len(replicas) > 1)):
        return True
    # Scans and removals of ranges do not take them.
    if replicas and case.operation.label in ("GET /v1/kv", "HEAD /v1/kv", "DELETE /v1/kv") and "key64" not in query:
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
    streams = headers.get("accept") in ("application/x-ndjson", "application/cbor-seq")
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
    """No deadline passes on a busy machine. The servers under test keep one copy."""
    for name, one in {"ack": "1", "from": "1", "replicas": "1/1"}.items():
        if re.fullmatch("[1-9][0-9]*(/[1-9][0-9]*)?", str((case.query or {}).get(name))):
            case.query[name] = one
    for name in case.headers or {}:
        if name.lower() == "klad-timeout" and re.fullmatch("[0-9]+(ms|s|m)", case.headers[name]):
            case.headers[name] = "9m"
    return case


@schemathesis.hook
def filter_case(context, case):
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    return not (is_valid and is_contradictory(case))
