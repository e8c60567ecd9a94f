-- The table `wrk` for scripts of wrk and wrk2, and the code that wrk runs around their functions.
--
-- Names, arguments, and changes to tables that are passed as arguments are those of wrk
-- (https://github.com/wg/wrk/blob/master/SCRIPTING). Every Lua state of `klad bench --script` runs this before the script.

wrk = { scheme = "http", host = "localhost", method = "GET", path = "/", headers = {} }
package.loaded.wrk = wrk

local function is_callable(name)
    return type(_G[name]) == "function"
end

-- Returns the bytes of a request. Arguments that are nil default to the fields of `wrk`.
function wrk.format(method, path, headers, body)
    headers = headers or wrk.headers
    body = body or wrk.body
    -- As in wrk, this changes the caller's table.
    headers["Host"] = headers["Host"] or wrk.headers["Host"]
    -- A body may be a number.
    headers["Content-Length"] = body and string.len(body)
    local lines = { string.format("%s %s HTTP/1.1", method or wrk.method, path or wrk.path) }
    for name, value in pairs(headers) do
        table.insert(lines, string.format("%s: %s", name, value))
    end
    return table.concat(lines, "\r\n") .. "\r\n\r\n" .. (body or "")
end

-- Sets `wrk.addrs` to the addresses that accept a connection.
function wrk.resolve(host, service)
    wrk.addrs = {}
    for _, address in ipairs(wrk.lookup(host, service)) do
        if wrk.connect(address) then
            table.insert(wrk.addrs, address)
        end
    end
end

-- Called in the Lua state of the run, once for each thread.
function wrk.setup(thread)
    thread.addr = wrk.addrs[1]
    if is_callable("setup") then
        setup(thread)
    end
end

-- Called in the Lua state of each thread.
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
