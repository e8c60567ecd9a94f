-- The table `wrk` as scripts of wrk and wrk2 know it, and what wrk does around their functions.
--
-- The names, what each function may be given, and what it leaves behind in the tables that it is given are wrk's
-- (https://github.com/wg/wrk/blob/master/SCRIPTING). Read by every Lua state of `klad bench --script` before the script.

wrk = { scheme = "http", host = "localhost", method = "GET", path = "/", headers = {} }
package.loaded.wrk = wrk

local function is_callable(name)
    return type(_G[name]) == "function"
end

-- A request as it is sent. What is nil comes from `wrk`.
function wrk.format(method, path, headers, body)
    headers = headers or wrk.headers
    body = body or wrk.body
    -- Both are seen by whoever gave the table, as with wrk.
    headers["Host"] = headers["Host"] or wrk.headers["Host"]
    -- A body may be a number.
    headers["Content-Length"] = body and string.len(body)
    local lines = { string.format("%s %s HTTP/1.1", method or wrk.method, path or wrk.path) }
    for name, value in pairs(headers) do
        table.insert(lines, string.format("%s: %s", name, value))
    end
    return table.concat(lines, "\r\n") .. "\r\n\r\n" .. (body or "")
end

-- Keeps the addresses that take a connection.
function wrk.resolve(host, service)
    wrk.addrs = {}
    for _, address in ipairs(wrk.lookup(host, service)) do
        if wrk.connect(address) then
            table.insert(wrk.addrs, address)
        end
    end
end

-- In the state of the whole run, once for each thread.
function wrk.setup(thread)
    thread.addr = wrk.addrs[1]
    if is_callable("setup") then
        setup(thread)
    end
end

-- In the state of a thread.
function wrk.init(arguments)
    if not wrk.headers["Host"] then
        local host = wrk.host:find(":", 1, true) and "[" .. wrk.host .. "]" or wrk.host
        wrk.headers["Host"] = wrk.port and host .. ":" .. wrk.port or host
    end
    if is_callable("init") then
        init(arguments)
    end
    local always = wrk.format()
    wrk.request = function() return always end
end
