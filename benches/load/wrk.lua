-- What wrk sends and prints. Arguments: the file of bodies, one a line; and `different` where no
-- body may come twice: then the number of the request takes the place of ########.
-- The line RESULT holds requests, microseconds, p50 and p99 in microseconds, and failures.
local heads, tails, whole, n, different = {}, {}, {}, 0, false
function init(args)
  different = args[2] == "different"
  -- Another run begins at another number.
  n = different and os.time() % 10000 * 10000 or 0
  for body in io.lines(args[1]) do
    local at = body:find("########", 1, true)
    local head = "POST /v1/chat/completions HTTP/1.1\r\nHost: " .. wrk.host ..
      "\r\nContent-Type: application/json\r\nContent-Length: " .. #body .. "\r\n\r\n"
    heads[#heads + 1] = head .. body:sub(1, at - 1)
    tails[#tails + 1] = body:sub(at + 8)
    whole[#whole + 1] = head .. body
  end
end
function request()
  n = n + 1
  local i = n % #whole + 1
  if not different then return whole[i] end
  return heads[i] .. string.format("%08d", n) .. tails[i]
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
