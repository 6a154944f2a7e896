-- Sixteen requests in one write.
init = function()
   local one = wrk.format()
   request_bytes = string.rep(one, 16)
end
request = function() return request_bytes end
