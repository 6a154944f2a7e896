-- Requests for /c/BYTES/NAME/NUMBER; after `--`: cycle|zipf BYTES COUNT NAME [FIRST]
-- `cycle` takes the numbers in turn, from FIRST on; `zipf` draws them, number n with a probability of about 1/n.
local begin, ending, count, zipf, next

function init(args)
    zipf, count = args[1] == "zipf", tonumber(args[3])
    next = tonumber(args[5] or 0)
    math.randomseed(next + 1)
    begin = "GET /c/" .. args[2] .. "/" .. args[4] .. "/"
    ending = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\n\r\n"
end

function request()
    local number
    if zipf then
        -- The inverse of the distribution function, as if n were continuous.
        number = math.floor(count ^ math.random())
    else
        number = next % count
        next = next + 1
    end
    return begin .. number .. ending
end
