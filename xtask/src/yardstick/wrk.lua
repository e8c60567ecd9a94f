-- Requests of the yardstick, the same for every server: METHOD, KEYS (0: always "/"), DISTRIBUTION, QUERY, BYTES of a body.
-- The last line of the report is for the program that has started wrk.

local method, keys, zipf, query, size

function init(args)
    method, keys, zipf = args[1], tonumber(args[2]), args[3] == "zipf"
    query, size = args[4] or "", tonumber(args[5] or "0")
    if query == "-" then query = "" end
    math.randomseed(os.time() + keys)
    if method == "PUT" then wrk.body = string.rep("v", size) end
    -- What does not change is formatted once.
    local whole = wrk.format(method, "/v0/entity?id=key0000000" .. query)
    local at = string.find(whole, "key0000000", 1, true)
    head, tail = string.sub(whole, 1, at + 2), string.sub(whole, at + 10)
end

function request()
    local key
    if zipf then
        -- An exponent of 1, by the inverse of its continuous form; neighbours in rank are no neighbours in order.
        key = (math.floor(keys ^ math.random()) * 7919) % keys
    else
        key = math.random(keys) - 1
    end
    return head .. string.format("%07d", key) .. tail
end

function done(summary, latency)
    local errors = summary.errors
    io.write(string.format("yardstick %d %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
        latency:percentile(99), latency:percentile(99.9),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
